-- How a request comes to wait, and how it ends: with exactly one result.
local STATES = { p = 'pending', d = 'delayed', c = 'claimed' }
local EXPIRED, CANCELLED, POISON, BODY_GONE, REQUEST_GONE = unpack(TEXTS)

local function error_body(message)
  return '{"error":' .. cjson.encode(message) .. '}'
end

-- The fields of a request that every ending needs.
local function entry(n)
  local f = call('HMGET', P .. 'e:' .. n, 'id', 'token', 'tenant', 'tier', 'deadline', 'state', 'fence', 'attempt', 'list', 'source')
  if not f[1] then
    return nil
  end
  return {
    n = n, id = f[1], token = f[2], tenant = f[3], tier = f[4], deadline = tonumber(f[5]), state = f[6], fence = f[7],
    attempt = f[8], list = f[9], source = f[10],
  }
end

local function let_in(e, credit)
  call('HSET', P .. 'e:' .. e.n, 'state', 'p')
  put(e.n, e.tier, e.tenant, e.deadline, credit or 0)
  call('ZADD', P .. 'waiting', e.deadline, e.n)
  stir()
end

-- Results in the Go processor's form; a payload there is text.
local function go_result(e, r)
  local result = { id = e.id, payload = r.body, request_token = e.token }
  if tonumber(r.status) > 0 then
    result.status_code = tonumber(r.status)
  end
  if r.code ~= '' then
    result.error_code = r.code
    result.error_message = r.message
  end
  return cjson.encode(result)
end

-- What a Go producer's key says. One of another kind says nothing: an error here would end a script that has written
-- already, and Redis takes nothing back.
local function told(key)
  local value = redis.pcall('GET', key)
  return type(value) == 'string' and value
end

-- What a Go producer left for us to clear away, unless its id was used again since.
local function clear_source(e)
  call('HDEL', P .. 'go', e.n)
  for _, key in ipairs({ 'request-active:' .. e.id, 'request-cancel:' .. e.id }) do
    if told(key) == e.token then
      call('DEL', key)
    end
  end
end

local function is_list(key)
  local kind = call('TYPE', key).ok
  return kind == 'list' or kind == 'none'
end

-- r: status, body, code, message, attempts
local function publish(e, r)
  if e.source and e.source ~= '' then
    clear_source(e)
  end
  -- An intake that is empty does not exist, and a result would make a list of it.
  if e.list ~= '' and e.list ~= e.source and is_list(e.list) then
    call('LPUSH', e.list, go_result(e, r))
    call('ZREM', P .. 'i:' .. e.id, e.token)
    if e.fence ~= '' then
      call('SET', P .. 'f:' .. e.n, e.fence, 'PX', REMEMBERED)
    end
  else
    local key, index = P .. 'r:' .. e.n, P .. 'i:' .. e.id
    call('HSET', key, 'id', e.id, 'token', e.token, 'status', r.status, 'body', r.body, 'code', r.code, 'message',
      r.message, 'attempts', r.attempts, 'finished', NOW, 'fence', e.fence)
    call('PEXPIRE', key, KEPT)
    place_later('ready', e.n, NOW)
    local lasts = call('PTTL', index)
    if lasts < KEPT or (e.deadline or 0) <= NOW then -- the index may have ended since, or never had it
      call('ZADD', index, tonumber(e.n, 16), e.token)
    end
    if lasts < KEPT then
      call('PEXPIRE', index, KEPT)
    end
  end
  call('PUBLISH', P .. 'done:' .. e.id, e.n)
end

-- `as`: the counter that it belongs to.
local function finish(e, r, as)
  call('DEL', P .. 'e:' .. e.n, P .. 'b:' .. e.n)
  if e.state == 'c' then
    place_later('leases', e.n, false)
  else
    call('ZREM', P .. 'waiting', e.n)
    if e.state == 'd' then
      call('ZREM', P .. 'delayed', e.n)
    else
      drop(e.n, e.tier, e.tenant)
    end
  end
  count(as)
  publish(e, r)
end

local function fail(e, as, code, message)
  e.fence = '' -- no claim may take this ending for its own
  local r = { status = 0, body = error_body(message), code = code, message = message, attempts = e.attempt }
  finish(e, r, as)
end

-- Whether the Go producer that it came from cancelled it since.
local function marked(e)
  return e.source and e.source ~= '' and told('request-cancel:' .. e.id) == e.token
end

-- Answered CANCELLED; whoever holds it hears of it.
local function revoke(e)
  if e.state == 'c' then
    call('PUBLISH', P .. 'cancelled', call('HGET', P .. 'e:' .. e.n, 'owner') .. '\0' .. e.fence)
  end
  fail(e, 'cancelled', 'CANCELLED', CANCELLED)
end

local function bury(reason, id, raw)
  local head = string.format('%d %d %d ', NOW, #reason, id and #id or -1)
  call('LPUSH', P .. 'dead', head .. reason .. (id or '') .. string.sub(raw, 1, RAW_KEPT))
  call('LTRIM', P .. 'dead', 0, DEAD_KEPT - 1)
  count('dead_letters')
end

-- Nothing but its number is left of a request: it must not stop the others.
local function lost(n, tier, tenant)
  local gone = 0
  for _, name in ipairs({ 'waiting', 'delayed', 'leases' }) do
    gone = gone + call('ZREM', P .. name, n)
  end
  if tier then
    drop(n, tier, tenant)
  end
  call('DEL', P .. 'b:' .. n)
  call('HDEL', P .. 'go', n)
  if gone > 0 then
    bury(REQUEST_GONE, nil, '')
    count('failed')
  end
end

-- The lease ended and nobody finished: whoever held it is taken for dead.
local function lapse(e)
  local key = P .. 'e:' .. e.n
  local lapses = call('HINCRBY', key, 'lapses', 1)
  if e.deadline <= NOW then
    fail(e, 'expired', 'DEADLINE_EXCEEDED', EXPIRED)
  elseif lapses >= LAPSES then
    bury(POISON, e.id, call('GETRANGE', P .. 'b:' .. e.n, 0, RAW_KEPT - 1))
    fail(e, 'failed', 'INFERENCE_ERROR', POISON)
  else
    call('ZREM', P .. 'leases', e.n)
    call('HSET', key, 'fence', '')
    count('redelivered')
    let_in(e)
  end
end

local function due(name, limit)
  return call('ZRANGEBYSCORE', P .. name, '-inf', NOW, 'LIMIT', 0, limit)
end

-- When nobody could speak to the broker for a while, those who live get the time to say so before their claims are
-- taken for those of the dead: what they finished meanwhile would be done again. Until when.
local function grace()
  local pulse = call('HMGET', P .. 'pulse', 'at', 'grace')
  local at, ends = tonumber(pulse[1] or NOW), tonumber(pulse[2] or 0)
  if NOW - at > SILENCE then
    ends = NOW + GRACE
    call('HSET', P .. 'pulse', 'at', NOW, 'grace', ends)
  elseif not pulse[1] or NOW - at > SILENCE / 10 or at > NOW then
    call('HSET', P .. 'pulse', 'at', NOW)
  end
  return math.min(ends, NOW + GRACE)
end

-- A clock that went back, as after a failover, leaves no claim to its holder for longer than a lease.
local function shorten(limit)
  local latest = NOW + math.max(LEASE, LONGEST_LEASE)
  for _, n in ipairs(call('ZRANGEBYSCORE', P .. 'leases', string.format('(%d', latest), '+inf', 'LIMIT', 0, limit)) do
    call('ZADD', P .. 'leases', latest, n)
  end
end

-- Let due retries in, give lapsed claims back, answer what is past its deadline; how many were touched.
local function tidy(limit)
  local function each(numbers, deal)
    for _, n in ipairs(numbers) do
      local e = entry(n)
      if e then
        deal(e)
      else
        lost(n)
      end
    end
  end
  shorten(limit)
  local late, lapsed = due('delayed', limit), grace() <= NOW and due('leases', limit) or {}
  each(late, function(e)
    call('ZREM', P .. 'delayed', e.n)
    let_in(e)
  end)
  each(lapsed, lapse)
  local overdue = due('waiting', limit)
  each(overdue, function(e)
    fail(e, 'expired', 'DEADLINE_EXCEEDED', EXPIRED)
  end)
  return #late + #lapsed + #overdue
end

-- The request if this claim still holds it: also past the end of its lease, until somebody takes it back.
local function held(fence)
  local e = entry(number_of(fence))
  if e and e.state == 'c' and e.fence == fence then
    return e, true
  end
  return e, false
end

-- Whether this claim gave it back already: the answer to that was lost.
local function released(e, fence)
  return e and e.state ~= 'c' and e.fence == fence
end

-- The number of a submission, the newest of its id without a token, and whether it has a result; nil: unknown.
local function find(id, token)
  local found = call('ZREVRANGE', P .. 'i:' .. id, 0, -1, 'WITHSCORES')
  for i = 1, #found, 2 do
    if token == '' or found[i] == token then
      local n = string.format('%012x', found[i + 1])
      if call('EXISTS', P .. 'e:' .. n) == 1 then
        return n, false
      elseif call('EXISTS', P .. 'r:' .. n) == 1 then
        return n, true
      end
    end
  end
  return nil, false
end
