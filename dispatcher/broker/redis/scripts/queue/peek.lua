-- limit, then the tenants to skip. Answers: events, { { id, token, tenant, deadline, size } ... }
tidy(MANY)
local heads = {}
for _, place in ipairs(next_up(tonumber(ARGV[FIRST]), skip_from(FIRST + 1))) do
  local head = call('HMGET', P .. 'e:' .. place[1], 'id', 'token', 'tenant', 'deadline', 'size')
  if not head[1] then
    lost(unpack(place))
  elseif tonumber(head[4]) > NOW then
    heads[#heads + 1] = head
  end
end
return { call('GET', P .. 'events') or '0', heads }
