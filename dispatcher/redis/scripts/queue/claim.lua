-- limit, owner, nonce, largest body to answer with, then the tenants to skip.
-- Answers: events, end of the leases, { { fence, id, token, tenant, deadline, created, meta, delivery, attempt, body } ... }
local limit, owner, nonce, inline = tonumber(ARGV[FIRST]), ARGV[FIRST + 1], ARGV[FIRST + 2], tonumber(ARGV[FIRST + 3])
local until_ms = NOW + LEASE

-- The body, '' where it is asked for by its own, nil where it is lost.
local function body_of(n, size)
  if size <= inline then
    return call('GET', P .. 'b:' .. n)
  end
  return call('EXISTS', P .. 'b:' .. n) == 1 and ''
end

local function claim(place)
  local n, tier, tenant = unpack(place)
  local key = P .. 'e:' .. n
  local f = call('HMGET', key, 'id', 'token', 'deadline', 'created', 'meta', 'delivery', 'attempt', 'size', 'source')
  if not f[1] then
    lost(n, tier, tenant)
    return nil
  elseif tonumber(f[3]) <= NOW then
    fail(entry(n), 'expired', 'DEADLINE_EXCEEDED', EXPIRED)
    return nil
  end
  if marked({ id = f[1], token = f[2], source = f[9] }) then
    revoke(entry(n))
    return nil
  end
  local body = body_of(n, tonumber(f[8]))
  if not body then
    fail(entry(n), 'failed', 'PAYLOAD_UNAVAILABLE', BODY_GONE)
    return nil
  end
  local fence = n .. '.' .. nonce
  local charge = string.format('%.17g', take(n, tier, tenant))
  call('HSET', key, 'state', 'c', 'fence', fence, 'owner', owner, 'delivery', f[6] + 1, 'charge', charge)
  call('ZREM', P .. 'waiting', n)
  call('ZADD', P .. 'leases', until_ms, n)
  return { fence, f[1], f[2], tenant, f[3], f[4], f[5], f[6] + 1, f[7], body, f[8] }
end

tidy(MANY)
local claims = {}
for _, place in ipairs(next_up(limit, skip_from(FIRST + 4))) do
  claims[#claims + 1] = claim(place)
end
return { call('GET', P .. 'events') or '0', until_ms, claims }
