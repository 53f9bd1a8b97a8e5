-- Returns claims to the queue for another attempt. Items of 3: fence, delay in ms, fault or ''. Answers 1 or 0 for each; a repeated item
-- is answered 1 again.
local function return_to_queue(e, delay, fault)
  if fault ~= '' then
    call('HINCRBY', P .. 'e:' .. e.n, 'failures', 1)
  end
  if fault == 'disconnected' then
    call('HINCRBY', P .. 'e:' .. e.n, 'disconnects', 1)
  end
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
for i = FIRST, #ARGV, 3 do
  local e, ours = claimed_by(ARGV[i])
  if ours then
    return_to_queue(e, tonumber(ARGV[i + 1]), ARGV[i + 2])
  else
    ours = was_returned(e, ARGV[i])
  end
  answers[#answers + 1] = ours and 1 or 0
end
return answers
