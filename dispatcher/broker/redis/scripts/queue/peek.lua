-- Shows the next requests. Arguments: limit, then the tenants to skip.
-- Answers: events, { { id, token, tenant, deadline, size } ... }
process_due(MANY)
local heads = {}
for _, request in ipairs(next_requests(tonumber(ARGV[FIRST]), skip_from(FIRST + 1))) do
  local head = call('HMGET', P .. 'e:' .. request[1], 'id', 'token', 'tenant', 'deadline', 'size')
  if not head[1] then
    drop_lost(unpack(request))
  elseif tonumber(head[4]) > NOW then -- `process_due` expires only MANY in one call
    heads[#heads + 1] = head
  end
end
return { call('GET', P .. 'events') or '0', heads }
