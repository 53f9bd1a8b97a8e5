-- KEYS[2]: a sorted set of the Go form. Items of 13: its member, then as in part_accept.lua.
-- Answers for each: 'new', 'same' (it was taken in before), 'gone' (another replica took it), 'cancelled', 'expired'
local function take_in(member, item)
  if call('ZREM', KEYS[2], member) == 0 then
    return 'gone'
  elseif known(item[1], item[2]) then
    return 'same'
  end
  if item[6] == '0' then
    item[6] = NOW
  end
  local e = accept(item, KEYS[2])
  if marked(e) then
    fail(e, 'cancelled', 'CANCELLED', CANCELLED)
    return 'cancelled'
  elseif e.deadline <= NOW then
    fail(e, 'expired', 'DEADLINE_EXCEEDED', EXPIRED)
    return 'expired'
  end
  call('HSET', P .. 'go', e.n, e.token .. '\0' .. e.id)
  let_in(e)
  return 'new'
end

local answers = {}
for first = FIRST, #ARGV, 13 do
  answers[#answers + 1] = take_in(ARGV[first], { unpack(ARGV, first + 1, first + 12) })
end
return answers
