-- Cancels requests whose Go producers have set their cancellation keys. Arguments: cursor, how many to check.
-- Checks claimed requests in every call, since they cost the target work, and waiting ones a part at a time (HSCAN); a
-- claim checks them once more. Answers the next cursor.
local function check(n, value)
  local token, id = string.match(value, '^([^%z]*)%z(.*)$')
  if token and cancelled_by_producer({ id = id, token = token, source = 'go' }) then
    local e = entry(n)
    if e then
      cancel_entry(e)
    else
      call('HDEL', P .. 'go', n)
    end
  end
end

local many = tonumber(ARGV[FIRST + 1])
for _, n in ipairs(call('ZRANGE', P .. 'leases', 0, many - 1)) do
  local value = call('HGET', P .. 'go', n)
  if value then
    check(n, value)
  end
end
local cursor, found = unpack(call('HSCAN', P .. 'go', ARGV[FIRST], 'COUNT', many))
for i = 1, #found, 2 do
  check(found[i], found[i + 1])
end
return cursor
