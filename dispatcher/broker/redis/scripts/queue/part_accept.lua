-- How a request is accepted. An item has 12 arguments: id, token, tenant, tier, deadline, created, size, meta, body,
-- idempotency key, digest, result list.

-- The answer for a submission that was accepted before: the client repeats it because the first answer was lost.
local function known(id, token)
  local n = call('ZSCORE', P .. 'i:' .. id, token)
  n = n and string.format('%012x', n)
  if n and (call('EXISTS', P .. 'e:' .. n) == 1 or call('EXISTS', P .. 'r:' .. n) == 1) then
    local e = call('HMGET', P .. 'e:' .. n, 'deadline', 'created')
    return { 'same', id, token, e[1] or '', e[2] or '' }
  end
end

-- The limit that one more request would pass; nil if it passes none. What Redis lost is never counted down: when nothing is
-- left, the count begins anew.
local LIMITS = { 'requests', 'bytes', 'tenant_requests', 'tenant_bytes' }
local function exceeded(tenant, size)
  local fields = { 'n', 'b', 'n:' .. tenant, 'b:' .. tenant }
  local stored
  for i, name in ipairs(LIMITS) do
    local limit = tonumber(ARGV[4 + i])
    if limit > 0 then
      stored = stored or call('HMGET', P .. 'load', unpack(fields))
      local now = tonumber(stored[i] or 0) + (held[fields[i]] or 0)
      if now + (i % 2 == 0 and size or 1) > limit then
        return name
      end
    end
  end
end

local function full(tenant, size)
  local name = exceeded(tenant, size)
  if name and call('EXISTS', P .. 'waiting', P .. 'leases') == 0 then
    call('DEL', P .. 'load')
    held = {}
    name = exceeded(tenant, size)
  end
  return name
end

-- Removes submissions whose request and result are gone. Without it, the index of an id that is used for every request
-- would grow for ever. Looks at 16, from a random place on: many may wait under one id, and to look at all of them for each
-- submission would hold up everybody. Redis seeds the generator alike for every script.
math.randomseed(clock[2])

local function prune(index)
  local size = call('ZCARD', index)
  if size < 8 then
    return
  end
  local first = size > 16 and math.random(0, size - 1) or 0
  local found = call('ZRANGE', index, first, first + 15, 'WITHSCORES')
  for i = 1, #found, 2 do
    local n = string.format('%012x', found[i + 1])
    if call('EXISTS', P .. 'e:' .. n, P .. 'r:' .. n) == 0 then
      call('ZREM', index, found[i])
    end
  end
end

-- Stores a new request without a place in the order. `source`: the intake's sorted set that it came from, or ''.
-- The entry has no expiry: as long as a request has no result, nothing may drop it. Its index expires with its result.
local function accept(item, source)
  local id, token, tenant, tier, deadline, created, size, meta, body, _, _, list = unpack(item)
  local number, index = call('INCR', P .. 'last'), P .. 'i:' .. id
  local n = string.format('%012x', number)
  call('HSET', P .. 'e:' .. n, 'id', id, 'token', token, 'tenant', tenant, 'tier', tier, 'deadline', deadline, 'created',
    created, 'held', 1, 'size', size, 'meta', meta, 'list', list, 'source', source, 'state', 'p', 'fence', '', 'attempt', 0, 'delivery', 0)
  call('SET', P .. 'b:' .. n, body)
  prune(index)
  call('ZADD', index, number, token)
  local until_ms = tonumber(deadline) + KEPT - NOW
  if call('PTTL', index) < until_ms then
    call('PEXPIRE', index, until_ms)
  end
  count('submitted')
  hold(tenant, tonumber(size), 1)
  return { n = n, id = id, token = token, tenant = tenant, tier = tier, deadline = tonumber(deadline), list = list,
    source = source, attempt = 0, state = 'p', fence = '', size = size, held = '1' }
end
