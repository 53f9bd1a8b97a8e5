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

-- Removes submissions whose request and result are gone. Without it, the index of an id that is used for every request
-- would grow for ever.
local function prune(index)
  if call('ZCARD', index) < 8 then
    return
  end
  local found = call('ZRANGE', index, 0, -1, 'WITHSCORES')
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
    created, 'size', size, 'meta', meta, 'list', list, 'source', source, 'state', 'p', 'fence', '', 'attempt', 0, 'delivery', 0)
  call('SET', P .. 'b:' .. n, body)
  prune(index)
  call('ZADD', index, number, token)
  local until_ms = tonumber(deadline) + KEPT - NOW
  if call('PTTL', index) < until_ms then
    call('PEXPIRE', index, until_ms)
  end
  count('submitted')
  return { n = n, id = id, token = token, tenant = tenant, tier = tier, deadline = tonumber(deadline), list = list,
    source = source, attempt = 0, state = 'p', fence = '' }
end
