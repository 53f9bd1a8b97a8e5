-- Returns claims to the queue for another attempt. Items of 2: fence, delay in ms. Answers 1 or 0 for each; a repeated item
-- is answered 1 again.
local function return_to_queue(e, delay)
  call('ZREM', P .. 'leases', e.n)
  count('retries')
  if delay <= 0 then
    enqueue(e)
  else
    call('HSET', P .. 'e:' .. e.n, 'state', 'd')
    call('ZADD', P .. 'delayed', NOW + delay, e.n)
    call('ZADD', P .. 'waiting', e.deadline, e.n)
    wake()
  end
end

local answers = {}
for i = FIRST, #ARGV, 2 do
  local e, ours = claimed_by(ARGV[i])
  if ours then
    return_to_queue(e, tonumber(ARGV[i + 1]))
  else
    ours = was_returned(e, ARGV[i])
  end
  answers[#answers + 1] = ours and 1 or 0
end
return answers
