-- Claims the next requests. Arguments: limit, owner, nonce, size of the largest inline body, then the tenants to skip.
-- Answers: events, end of the leases,
-- { { fence, id, token, tenant, deadline, created, meta, delivery, attempt, body, size, failures,
--   disconnects } ... }
local limit, owner, nonce, inline = tonumber(ARGV[FIRST]), ARGV[FIRST + 1], ARGV[FIRST + 2], tonumber(ARGV[FIRST + 3])
local until_ms = NOW + LEASE

-- The body; '' if it is too large and fetched by itself; nil or false if it is lost.
local function body_of(n, size)
  if size <= inline then
    return call('GET', P .. 'b:' .. n)
  end
  return call('EXISTS', P .. 'b:' .. n) == 1 and ''
end

-- What happens to a request that cannot be claimed; nil if it can.
local function ending(f, n, tier, tenant, body)
  if not f[1] then
    return function() drop_lost(n, tier, tenant) end
  elseif tonumber(f[3]) <= NOW then
    return function() fail(entry(n), 'expired', 'DEADLINE_EXCEEDED', EXPIRED) end
  elseif cancelled_by_producer({ id = f[1], token = f[2], source = f[9] }) then
    return function() cancel_entry(entry(n)) end
  elseif not body then
    return function() fail(entry(n), 'failed', 'PAYLOAD_UNAVAILABLE', BODY_GONE) end
  end
end

-- Counts the attempt at once: the holder may send the request at any time, and be killed before it could count it.
local function claim(request)
  local n, tier, tenant = unpack(request)
  local key = P .. 'e:' .. n
  local f = call('HMGET', key, 'id', 'token', 'deadline', 'created', 'meta', 'delivery', 'attempt', 'size', 'source',
    'failures', 'disconnects')
  local body = f[1] and body_of(n, tonumber(f[8]))
  local instead = ending(f, n, tier, tenant, body)
  if instead then
    write_served() -- `instead` changes the order, which `serve` has not written yet
    instead()
    return nil
  end
  local fence = n .. '.' .. nonce -- the nonce is new in each call: the fence is unique among all claims of the request
  local charge = string.format('%.17g', serve(n, tier, tenant))
  call('HSET', key, 'state', 'c', 'fence', fence, 'owner', owner, 'delivery', f[6] + 1, 'attempt', f[7] + 1, 'charge', charge)
  score_later('waiting', n, false)
  score_later('leases', n, until_ms)
  return { fence, f[1], f[2], tenant, f[3], f[4], f[5], f[6] + 1, f[7], body, f[8], f[10], f[11] }
end

process_due(MANY)
local claims = {}
for _, request in ipairs(next_requests(limit, skip_from(FIRST + 4))) do
  claims[#claims + 1] = claim(request)
end
write_served()
return { call('GET', P .. 'events') or '0', until_ms, claims }
