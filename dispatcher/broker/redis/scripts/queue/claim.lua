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

-- How it ends instead of being claimed; nil: it does not.
local function ending(f, n, tier, tenant, body)
  if not f[1] then
    return function() lost(n, tier, tenant) end
  elseif tonumber(f[3]) <= NOW then
    return function() fail(entry(n), 'expired', 'DEADLINE_EXCEEDED', EXPIRED) end
  elseif marked({ id = f[1], token = f[2], source = f[9] }) then
    return function() revoke(entry(n)) end
  elseif not body then
    return function() fail(entry(n), 'failed', 'PAYLOAD_UNAVAILABLE', BODY_GONE) end
  end
end

-- It is counted as an attempt: whoever has it may send it at any time, and be killed right then.
local function claim(place)
  local n, tier, tenant = unpack(place)
  local key = P .. 'e:' .. n
  local f = call('HMGET', key, 'id', 'token', 'deadline', 'created', 'meta', 'delivery', 'attempt', 'size', 'source')
  local body = f[1] and body_of(n, tonumber(f[8]))
  local instead = ending(f, n, tier, tenant, body)
  if instead then
    write_served()
    instead()
    return nil
  end
  local fence = n .. '.' .. nonce
  local charge = string.format('%.17g', take(n, tier, tenant))
  call('HSET', key, 'state', 'c', 'fence', fence, 'owner', owner, 'delivery', f[6] + 1, 'attempt', f[7] + 1, 'charge', charge)
  place_later('waiting', n, false)
  place_later('leases', n, until_ms)
  return { fence, f[1], f[2], tenant, f[3], f[4], f[5], f[6] + 1, f[7], body, f[8] }
end

tidy(MANY)
local claims = {}
for _, place in ipairs(next_up(limit, skip_from(FIRST + 4))) do
  claims[#claims + 1] = claim(place)
end
write_served()
return { call('GET', P .. 'events') or '0', until_ms, claims }
