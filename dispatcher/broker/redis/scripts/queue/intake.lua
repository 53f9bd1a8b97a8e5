-- Moves messages from an intake into the queue. KEYS[2]: the intake's sorted set. Items of 13: its member, then the 12 of
-- part_accept.lua. Removing and accepting are one atomic step, so that no message is lost or doubled.
-- Answers for each: 'new', 'same' (accepted before), 'gone' (another replica moved it), 'cancelled', 'expired',
-- 'full' (it stays in the intake)
local function move(member, item)
  local same = known(item[1], item[2])
  local over = tonumber(item[5]) <= NOW or cancelled_by_producer({ id = item[1], token = item[2], source = KEYS[2] })
  if not same and not over and full(item[3], tonumber(item[7])) then
    return 'full'
  elseif call('ZREM', KEYS[2], member) == 0 then
    return 'gone'
  elseif same then
    return 'same'
  end
  if item[6] == '0' then
    item[6] = NOW
  end
  -- Accepted even if it is cancelled or expired: its producer waits for a result, and every submission is counted.
  local e = accept(item, KEYS[2])
  if cancelled_by_producer(e) then
    fail(e, 'cancelled', 'CANCELLED', CANCELLED)
    return 'cancelled'
  elseif e.deadline <= NOW then
    fail(e, 'expired', 'DEADLINE_EXCEEDED', EXPIRED)
    return 'expired'
  end
  call('HSET', P .. 'go', e.n, e.token .. '\0' .. e.id)
  enqueue(e)
  return 'new'
end

local answers = {}
for first = FIRST, #ARGV, 13 do
  answers[#answers + 1] = move(ARGV[first], { unpack(ARGV, first + 1, first + 12) })
end
return answers
