-- The ledger of one target: the rules of dispatcher/broker/capacity/target_ledger.py, applied to several operations in order.
-- A script is atomic (https://redis.io/docs/latest/develop/programmability/), so no two dispatchers get the same room.
--
-- KEYS: began (sorted set: reservation by start), leases (sorted set: reservation by end of lease), state (hash).
--   All have one hash tag: in a cluster a script may only touch keys of one slot.
-- ARGV: the channel for wake-ups, the lease in ms, the life that the caller knows or '', then operations:
--   R member units at floor(headroom) headroom>0 floor(allotment)   reserve
--   H member began                                                  heartbeat
--   F member accepted                                               release
--   O retry_after_ms                                                report an overload
--   L                                                               read the state
-- A member is "units:token": the units need no lookup of their own.
-- Answer: the time, the life of this ledger, then a list for each operation: for R {1, is a probe, began} or
-- {0, code of the refusal, until}, for L {units in flight}.
local began, leases, state = KEYS[1], KEYS[2], KEYS[3]
local channel, lease, known = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local RAMP_END, ALWAYS_NEWER, LONGEST_RETRY_AFTER = 1024, 2 ^ 53, 30000
local FIELDS = { 'life', 'recounted', 'rejected', 'retry', 'window', 'probe', 'opened', 'wanted', 'units' }
local call = redis.call
-- The server's clock: the clocks of dispatchers differ. TIME before a write is allowed since Redis 5, which replicates
-- the writes of a script, not its text (https://redis.io/docs/latest/develop/programmability/eval-intro/#script-replication).
local clock = call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local freed = false

-- When Redis is out of memory it refuses the first write of a script if that write needs memory, and no later one
-- (https://redis.io/docs/latest/develop/programmability/eval-intro/#execution-under-low-memory-conditions). This write
-- needs none and changes nothing, since no member is ''. So the ledger works on: it is small, and without it no request
-- is sent whose end would free memory.
call('ZREM', leases, '')

-- The hash is read once at the start and written once at the end: a command costs as much as many lines of Lua.
-- `lease_of`: the new end of a reservation's lease, false for one to be removed.
local fields, changed, lease_of = {}, {}, {}
for i, value in ipairs(call('HMGET', state, unpack(FIELDS))) do
  fields[FIELDS[i]] = value or nil
end

local function get(field)
  return tonumber(fields[field] or '-1')
end

local function set(field, value)
  fields[field], changed[field] = value, true
end

-- `unpack` fails for more values than Lua's C stack holds, 8000 in Lua 5.1 (LUAI_MAXCSTACK).
local function in_pieces(command, key, words)
  for first = 1, #words, 1000 do
    call(command, key, unpack(words, first, math.min(first + 999, #words)))
  end
end

local function write()
  local values, removed, held, ended = {}, {}, {}, {}
  for field in pairs(changed) do
    if fields[field] == nil then
      removed[#removed + 1] = field
    else
      values[#values + 1], values[#values + 2] = field, fields[field]
    end
  end
  for member, till in pairs(lease_of) do
    if till then
      held[#held + 1], held[#held + 2] = till, member
    else
      ended[#ended + 1] = member
    end
  end
  in_pieces('HSET', state, values)
  in_pieces('HDEL', state, removed)
  in_pieces('ZADD', leases, held)
  in_pieces('ZREM', leases, ended)
end

-- A time later than possible was written before the clock went back, as after a failover to a replica with another clock.
-- Unclamped, the target would stay closed until the clock reaches that time again.
local function clamp(field, latest)
  if get(field) > latest then set(field, latest) end
end

-- The life of this ledger: the time of its first operation. A caller that knows another life shows that Redis lost the
-- ledger, and that requests are in flight which are not counted here. Their holders report them with their heartbeats,
-- within a lease. Until then nothing is admitted; else everybody would send the whole headroom a second time.
local function life()
  if not fields.life then
    set('life', clock[1] .. '.' .. clock[2])
  end
  if known ~= '' and known ~= fields.life and not fields.recounted then
    set('recounted', now + lease)
  end
  return fields.life
end

-- The refusal if the ledger was lost, or after an overload; nil if the target is open. target_ledger.py explains the steps.
local function closed(at, room)
  clamp('recounted', now + lease)
  if now < get('recounted') then return {0, 'lost', get('recounted')} end
  clamp('rejected', now)
  clamp('retry', now + LONGEST_RETRY_AFTER)
  if at <= get('rejected') then return {0, 'stale', -1} end
  local window = get('window')
  if window < 0 then return nil end
  if window == 0 then
    local retry = get('retry')
    if now < retry then return {0, 'asked', retry} end
    -- A probe whose holder was killed is removed with its lease; the next request is the probe then.
    if fields.probe and call('ZSCORE', began, fields.probe) then return {0, 'probe', -1} end
    return nil
  end
  if room <= window then
    set('window', nil)
  elseif call('ZCOUNT', began, get('opened'), '+inf') >= window then
    return {0, 'ramp', -1}
  end
  return nil
end

local function units_of(member)
  return tonumber(string.match(member, '^%d+'))
end

-- The sum of all units is kept in the hash, since adding up the members for every request would cost as much as the
-- request. It is still added up at every L: a dispatcher of an earlier version changes the members and not the sum.
local function add_up()
  local sum = 0
  for _, member in ipairs(call('ZRANGE', began, 0, -1)) do
    sum = sum + units_of(member)
  end
  set('units', sum)
end

local function in_flight()
  if not fields.units then add_up() end
  return tonumber(fields.units)
end

local function add(units)
  if fields.units then set('units', tonumber(fields.units) + units) end
end

-- Units that began at `at` or later, which a reading of that time does not show. Cached, because consecutive requests
-- mostly have the same reading.
local counted_at, counted
local function unseen(at)
  if at >= ALWAYS_NEWER then return 0 end
  if counted_at ~= at then
    counted_at, counted = at, 0
    for _, member in ipairs(call('ZRANGEBYSCORE', began, at, '+inf')) do
      counted = counted + units_of(member)
    end
  end
  return counted
end

-- Whether neither rule has room: the allotment for everything in flight, the headroom for what the reading does not show.
local function spent(at, units, room, positive, allotment)
  if allotment > 0 and in_flight() + units <= allotment then return false end
  if unseen(at) + units <= room then return false end
  return not (positive and call('ZCARD', began) == 0)
end

local function reserve(member, units, at, room, positive, allotment)
  local refusal = at > now and at < ALWAYS_NEWER and {0, 'future', -1} or closed(at, room)
  if not refusal and spent(at, units, room, positive, allotment) then refusal = {0, 'spent', -1} end
  -- A member that exists already: the client lost the first answer and repeats the operation. It is granted again.
  local again
  if refusal then
    again = call('ZSCORE', began, member)
  else
    again = call('ZADD', began, 'NX', now, member) == 0
  end
  if again then return {1, fields.probe == member and 1 or 0, now} end
  if refusal then
    set('wanted', 1)
    return refusal
  end
  if counted_at then counted = counted + units end
  add(units)
  lease_of[member] = now + lease
  local probe = get('window') == 0
  if probe then
    set('probe', member)
    set('opened', now)
  end
  return {1, probe and 1 or 0, now}
end

-- NX: a known reservation keeps its start; one that was removed or lost is counted again, since its request is running.
local function heartbeat(member, since)
  counted_at = nil
  if call('ZADD', began, 'NX', since, member) == 1 then add(units_of(member)) end
  lease_of[member] = now + lease
  return {1}
end

local function release(member, accepted)
  local window = get('window')
  local time = accepted and window >= 0 and tonumber(call('ZSCORE', began, member) or '-1')
  lease_of[member] = false
  if call('ZREM', began, member) == 0 then return {0} end
  freed, counted_at = true, nil
  add(-units_of(member))
  -- Only what began after the probe widens the window: what was accepted before the overload proves nothing.
  if time and time >= get('opened') then
    if window >= RAMP_END then
      set('window', nil)
    elseif window > 0 then
      set('window', window * 2)
    elseif fields.probe == member then
      set('window', 2)
    end
  end
  return {1}
end

-- The longest Retry-After that is still running counts: another replica may have been given a shorter one.
local function report_overload(retry_after)
  set('retry', math.max(get('retry'), now + retry_after))
  set('rejected', now)
  set('window', 0)
  set('probe', '')
  return {1}
end

-- A lease of more than `lease` was written before the clock went back.
for _, member in ipairs(call('ZRANGEBYSCORE', leases, '(' .. string.format('%d', now + lease), '+inf')) do
  lease_of[member] = now + lease
end
-- Leases that have ended: their holders were killed, and nobody would release their units.
for _, member in ipairs(call('ZRANGEBYSCORE', leases, '-inf', now)) do
  lease_of[member] = false
  if call('ZREM', began, member) == 1 then add(-units_of(member)) end
  freed = true
end

local answers, at = {now, life()}, 4
while ARGV[at] do
  local operation = ARGV[at]
  if operation == 'R' then
    answers[#answers + 1] = reserve(ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]),
      tonumber(ARGV[at + 4]), ARGV[at + 5] == '1', tonumber(ARGV[at + 6]))
    at = at + 7
  elseif operation == 'H' then
    answers[#answers + 1] = heartbeat(ARGV[at + 1], ARGV[at + 2])
    at = at + 3
  elseif operation == 'F' then
    answers[#answers + 1] = release(ARGV[at + 1], ARGV[at + 2] == '1')
    at = at + 3
  elseif operation == 'L' then
    add_up()
    answers[#answers + 1] = {in_flight()}
    at = at + 1
  else
    answers[#answers + 1] = report_overload(tonumber(ARGV[at + 1]))
    at = at + 2
  end
end

-- Publishes only if somebody was refused since the last time: under load every release frees room that nobody waits for.
local publish = freed and fields.wanted
if publish then set('wanted', nil) end
write()
-- Keys of targets that are no longer used must not stay for ever. No reservation outlives its lease, and no Retry-After a
-- day.
call('PEXPIRE', began, lease + 60000)
call('PEXPIRE', leases, lease + 60000)
call('PEXPIRE', state, 86400000)
if publish then call('PUBLISH', channel, 'freed') end
return answers
