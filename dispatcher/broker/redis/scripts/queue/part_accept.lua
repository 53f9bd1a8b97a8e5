-- How a request comes in. Items of 12: id, token, tenant, tier, deadline, created, size, meta, body, idempotency key,
-- digest, result list.
local function known(id, token)
  local n = call('ZSCORE', P .. 'i:' .. id, token)
  n = n and string.format('%012x', n)
  if n and (call('EXISTS', P .. 'e:' .. n) == 1 or call('EXISTS', P .. 'r:' .. n) == 1) then
    local e = call('HMGET', P .. 'e:' .. n, 'deadline', 'created')
    return { 'same', id, token, e[1] or '', e[2] or '' }
  end
end

-- An id that is used again and again must not grow a list of what is long gone.
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

-- A request that was not known, in no order yet. `source`: the sorted set of the Go form that it came from, or ''.
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
