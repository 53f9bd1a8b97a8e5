-- cursor, how many. Cancels what Go producers marked since: of all that are on their way, and of so many that wait,
-- from the cursor on; those are asked again when they are claimed. Answers the next cursor.
local function look(n, value)
  local token, id = string.match(value, '^([^%z]*)%z(.*)$')
  if token and marked({ id = id, token = token, source = 'go' }) then
    local e = entry(n)
    if e then
      revoke(e)
    else
      call('HDEL', P .. 'go', n)
    end
  end
end

local many = tonumber(ARGV[FIRST + 1])
for _, n in ipairs(call('ZRANGE', P .. 'leases', 0, many - 1)) do
  local value = call('HGET', P .. 'go', n)
  if value then
    look(n, value)
  end
end
local cursor, found = unpack(call('HSCAN', P .. 'go', ARGV[FIRST], 'COUNT', many))
for i = 1, #found, 2 do
  look(found[i], found[i + 1])
end
return cursor
