-- The states of a request, from waiting to its one result; the same as in dispatcher/broker/memory/request_table.py.
local STATES = { p = 'pending', d = 'delayed', c = 'claimed' }
local EXPIRED, CANCELLED, POISON, BODY_GONE, REQUEST_GONE = unpack(TEXTS)

local function error_body(message)
  return '{"error":' .. cjson.encode(message) .. '}'
end

-- The fields of a request without a result that its next step needs; nil if there is none.
local function entry(n)
  local f = call('HMGET', P .. 'e:' .. n, 'id', 'token', 'tenant', 'tier', 'deadline', 'state', 'fence', 'attempt', 'list', 'source',
    'size', 'held')
  if not f[1] then
    return nil
  end
  return {
    n = n, id = f[1], token = f[2], tenant = f[3], tier = f[4], deadline = tonumber(f[5]), state = f[6], fence = f[7],
    attempt = f[8], list = f[9], source = f[10], size = f[11], held = f[12],
  }
end

local function enqueue(e, credit)
  call('HSET', P .. 'e:' .. e.n, 'state', 'p')
  add_to_order(e.n, e.tier, e.tenant, e.deadline, credit or 0)
  call('ZADD', P .. 'waiting', e.deadline, e.n)
  wake()
end

-- A result in the Go processor's form, where a payload is text.
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

-- The text under a Go producer's key. pcall: a key of another type gives an error, which would end a script that has
-- written already, and Redis rolls nothing back. Such a key counts as absent.
local function producer_text(key)
  local value = redis.pcall('GET', key)
  return type(value) == 'string' and value
end

-- Deletes the keys with which a Go producer marks a request as active or cancelled. The token is compared, since the
-- producer may have used the id again.
local function delete_producer_keys(e)
  call('HDEL', P .. 'go', e.n)
  for _, key in ipairs({ 'request-active:' .. e.id, 'request-cancel:' .. e.id }) do
    if producer_text(key) == e.token then
      call('DEL', key)
    end
  end
end

local function is_list(key)
  local kind = call('TYPE', key).ok
  return kind == 'list' or kind == 'none'
end

-- Publishes a result: pushes it to the request's list, or keeps it for consumers. r: status, body, code, message, attempts.
local function publish(e, r)
  if e.source and e.source ~= '' then
    delete_producer_keys(e)
  end
  -- Never to the request's own intake. Redis deletes a sorted set with its last member, so an empty intake looks like a
  -- free key; a result would make it a list, and producers could add nothing more.
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
    score_later('ready', e.n, NOW)
    local lasts = call('PTTL', index)
    if lasts < KEPT or (e.deadline or 0) <= NOW then -- the index may have expired, or does not exist (a rejected message)
      call('ZADD', index, tonumber(e.n, 16), e.token)
    end
    if lasts < KEPT then
      call('PEXPIRE', index, KEPT)
    end
  end
  call('PUBLISH', P .. 'done:' .. e.id, e.n)
end

-- Removes a request from its state and publishes its result. `counter`: the counter of Totals that it belongs to.
local function finish(e, r, counter)
  call('DEL', P .. 'e:' .. e.n, P .. 'b:' .. e.n)
  if e.state == 'c' then
    score_later('leases', e.n, false)
  else
    call('ZREM', P .. 'waiting', e.n)
    if e.state == 'd' then
      call('ZREM', P .. 'delayed', e.n)
    else
      remove_from_order(e.n, e.tier, e.tenant)
    end
  end
  if e.held then -- not if a version that did not count accepted it
    hold(e.tenant, tonumber(e.size), -1)
  end
  count(counter)
  publish(e, r)
end

local function fail(e, counter, code, message)
  e.fence = '' -- else a claim that repeats `finish` would be told that this result is its own
  local r = { status = 0, body = error_body(message), code = code, message = message, attempts = e.attempt }
  finish(e, r, counter)
end

-- Whether the Go producer of a request has cancelled it.
local function cancelled_by_producer(e)
  return e.source and e.source ~= '' and producer_text('request-cancel:' .. e.id) == e.token
end

-- Finishes a request as CANCELLED, and tells the holder of its claim.
local function cancel_entry(e)
  if e.state == 'c' then
    call('PUBLISH', P .. 'cancelled', call('HGET', P .. 'e:' .. e.n, 'owner') .. '\0' .. e.fence)
  end
  fail(e, 'cancelled', 'CANCELLED', CANCELLED)
end

-- A record: the time, the lengths of reason and id (-1: no id), then reason, id and message without separators, since each
-- may contain any byte.
local function add_dead_letter(reason, id, raw)
  local head = string.format('%d %d %d ', NOW, #reason, id and #id or -1)
  call('LPUSH', P .. 'dead', head .. reason .. (id or '') .. string.sub(raw, 1, RAW_KEPT))
  call('LTRIM', P .. 'dead', 0, DEAD_KEPT - 1)
  count('dead_letters')
end

-- Records a request as a dead letter; its result follows.
local function give_up(e, reason)
  add_dead_letter(reason, e.id, call('GETRANGE', P .. 'b:' .. e.n, 0, RAW_KEPT - 1))
end

-- Removes a number whose entry is gone, evicted by Redis or deleted by hand: it must not stop the requests behind it.
local function drop_lost(n, tier, tenant)
  local removed = 0
  for _, name in ipairs({ 'waiting', 'delayed', 'leases' }) do
    removed = removed + call('ZREM', P .. name, n)
  end
  if tier then
    remove_from_order(n, tier, tenant)
  end
  call('DEL', P .. 'b:' .. n)
  call('HDEL', P .. 'go', n)
  if removed > 0 then
    add_dead_letter(REQUEST_GONE, nil, '')
    count('failed')
  end
end

-- Ends a claim whose lease has ended: its holder is taken for dead. After MAX_LAPSES the request is taken for the cause.
local function lapse(e)
  local key = P .. 'e:' .. e.n
  local lapses = call('HINCRBY', key, 'lapses', 1)
  if e.deadline <= NOW then
    fail(e, 'expired', 'DEADLINE_EXCEEDED', EXPIRED)
  elseif lapses >= MAX_LAPSES then
    give_up(e, POISON)
    fail(e, 'failed', 'INFERENCE_ERROR', POISON)
  else
    call('ZREM', P .. 'leases', e.n)
    call('HSET', key, 'fence', '')
    count('redelivered')
    enqueue(e)
  end
end

local function due(name, limit)
  return call('ZRANGEBYSCORE', P .. name, '-inf', NOW, 'LIMIT', 0, limit)
end

-- Until when lapsed claims are left alone. If no dispatcher could reach Redis for a while (an outage, a frozen server), all
-- leases have ended although their holders live. They get this time to extend their claims or to publish results; else
-- what they have finished would run a second time.
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

-- Cuts leases that are longer than any lease can be: they were written before the clock went back, as after a failover.
-- Uncut, the requests of a killed dispatcher would stay claimed until the clock reaches those times again.
local function clamp_leases(limit)
  local latest = NOW + math.max(LEASE, LONGEST_LEASE)
  for _, n in ipairs(call('ZRANGEBYSCORE', P .. 'leases', string.format('(%d', latest), '+inf', 'LIMIT', 0, limit)) do
    call('ZADD', P .. 'leases', latest, n)
  end
end

-- Enqueues due retries and lapsed claims, finishes expired requests; how many. Every script that reads the order begins
-- with this, so that no timer decides what is visible.
local function process_due(limit)
  local function each(numbers, process)
    for _, n in ipairs(numbers) do
      local e = entry(n)
      if e then
        process(e)
      else
        drop_lost(n)
      end
    end
  end
  clamp_leases(limit)
  local late, lapsed = due('delayed', limit), grace() <= NOW and due('leases', limit) or {}
  each(late, function(e)
    call('ZREM', P .. 'delayed', e.n)
    enqueue(e)
  end)
  each(lapsed, lapse)
  local overdue = due('waiting', limit)
  each(overdue, function(e)
    fail(e, 'expired', 'DEADLINE_EXCEEDED', EXPIRED)
  end)
  return #late + #lapsed + #overdue
end

-- The request of a claim, and whether this claim holds it. A claim holds its request also after its lease has ended, until
-- `process_due` takes it back: a late answer is better than a second run.
local function claimed_by(fence)
  local e = entry(number_of(fence))
  if e and e.state == 'c' and e.fence == fence then
    return e, true
  end
  return e, false
end

-- Whether this claim has returned the request already: its first answer was lost. The fence stays until the next claim.
local function was_returned(e, fence)
  return e and e.state ~= 'c' and e.fence == fence
end

-- Removes a result that was delivered; `finish` may still be repeated. Answers 1, or 0 if there is none.
local function remove_result(n)
  local key = P .. 'r:' .. n
  local r = call('HMGET', key, 'fence', 'id', 'token')
  if not r[2] then
    return 0
  end
  call('DEL', key)
  call('ZREM', P .. 'held', n)
  call('ZREM', P .. 'ready', n)
  call('ZREM', P .. 'i:' .. r[2], r[3])
  if r[1] ~= '' then
    call('SET', P .. 'f:' .. n, r[1], 'PX', REMEMBERED)
  end
  return 1
end

-- The number of a submission (without a token the newest of the id), and whether it has a result; nil if unknown.
local function find(id, token)
  local index = P .. 'i:' .. id
  local function look(number)
    local n = string.format('%012x', number)
    if call('EXISTS', P .. 'e:' .. n) == 1 then
      return n, false
    elseif call('EXISTS', P .. 'r:' .. n) == 1 then
      return n, true
    end
  end
  if token ~= '' then
    local number = call('ZSCORE', index, token)
    return look(number or 0)
  end
  local seen = 0
  while true do -- in pieces, since mostly the newest is found and there may be many
    local found = call('ZREVRANGE', index, seen, seen + 15, 'WITHSCORES')
    for i = 2, #found, 2 do
      local n, done = look(found[i])
      if n then
        return n, done
      end
    end
    if #found == 0 then
      return nil, false
    end
    seen = seen + 16
  end
end
