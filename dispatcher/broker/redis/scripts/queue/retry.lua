-- Items of 2: fence, delay. Answers 1 or 0 for each; said again, 1 again.
local function park(e, delay)
  call('ZREM', P .. 'leases', e.n)
  count('retries')
  if delay <= 0 then
    let_in(e)
  else
    call('HSET', P .. 'e:' .. e.n, 'state', 'd')
    call('ZADD', P .. 'delayed', NOW + delay, e.n)
    call('ZADD', P .. 'waiting', e.deadline, e.n)
    stir()
  end
end

local answers = {}
for i = FIRST, #ARGV, 2 do
  local e, ours = held(ARGV[i])
  if ours then
    park(e, tonumber(ARGV[i + 1]))
  else
    ours = released(e, ARGV[i])
  end
  answers[#answers + 1] = ours and 1 or 0
end
return answers
