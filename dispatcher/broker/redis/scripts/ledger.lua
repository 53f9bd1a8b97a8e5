-- The book of dispatcher/broker/account.py, kept in the broker: several operations of one holder, in their order.
-- KEYS: began (zset: member by time), leases (zset: member by end of lease), state (hash); all of one hash tag.
-- ARGV: the channel for wake-ups, the lease in ms, the life that the asker knows or '', then operations:
--   R member units at floor(headroom) headroom>0 floor(allotment)   reserve
--   H member began                                 heartbeat
--   F member accepted                              release
--   O retry_after_ms                               overloaded
--   L                                              look
-- A member is "units:token". The answer: the time, the life of this book, then for each operation a list: of R {1, is a probe, began} or
-- {0, why not, until}, of L {the units of all that is on its way}.
local began, leases, state = KEYS[1], KEYS[2], KEYS[3]
local channel, lease, known = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local RAMP_END, ENDLESS, LONGEST_RETRY_AFTER = 1024, 2 ^ 53, 3600000
local FIELDS = { 'life', 'recounted', 'rejected', 'retry', 'window', 'probe', 'opened', 'wanted', 'units' }
local call = redis.call
local clock = call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local freed = false

-- Where no memory is left a script may write once it has written: Redis refuses its first command that needs memory, not
-- the later ones. The book is small, and without it nothing is sent that would free memory. No member is ''.
call('ZREM', leases, '')

-- Read once and written once: a command costs as much as many lines of this. `lease_of`: false for one to be removed.
local book, changed, lease_of = {}, {}, {}
for i, value in ipairs(call('HMGET', state, unpack(FIELDS))) do
  book[FIELDS[i]] = value or nil
end

local function get(field)
  return tonumber(book[field] or '-1')
end

local function set(field, value)
  book[field], changed[field] = value, true
end

local function in_pieces(command, key, words)
  for first = 1, #words, 1000 do
    call(command, key, unpack(words, first, math.min(first + 999, #words)))
  end
end

local function write()
  local values, gone, held, ended = {}, {}, {}, {}
  for field in pairs(changed) do
    if book[field] == nil then
      gone[#gone + 1] = field
    else
      values[#values + 1], values[#values + 2] = field, book[field]
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
  in_pieces('HDEL', state, gone)
  in_pieces('ZADD', leases, held)
  in_pieces('ZREM', leases, ended)
end

-- A clock that goes back, as after a failover, closes nothing for good.
local function clamp(field, latest)
  if get(field) > latest then set(field, latest) end
end

-- A book that its askers know by another life is empty because the broker lost the old one: what they have on its way is
-- written in again by their heartbeats, within a lease. Until then nobody is let in.
local function life()
  if not book.life then
    set('life', clock[1] .. '.' .. clock[2])
  end
  if known ~= '' and known ~= book.life and not book.recounted then
    set('recounted', now + lease)
  end
  return book.life
end

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
    if book.probe and call('ZSCORE', began, book.probe) then return {0, 'probe', -1} end
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

-- The sum is kept beside the members, since to add them up costs as much as many requests. It is added up at each look,
-- because processes of an earlier version leave it as it is.
local function add_up()
  local sum = 0
  for _, member in ipairs(call('ZRANGE', began, 0, -1)) do
    sum = sum + units_of(member)
  end
  set('units', sum)
end

local function in_flight()
  if not book.units then add_up() end
  return tonumber(book.units)
end

local function add(units)
  if book.units then set('units', tonumber(book.units) + units) end
end

-- Units that began at `at` or later; many that ask in a row have the same reading.
local counted_at, counted
local function unseen(at)
  if at >= ENDLESS then return 0 end
  if counted_at ~= at then
    counted_at, counted = at, 0
    for _, member in ipairs(call('ZRANGEBYSCORE', began, at, '+inf')) do
      counted = counted + units_of(member)
    end
  end
  return counted
end

local function spent(at, units, room, positive, allotment)
  if allotment > 0 and in_flight() + units <= allotment then return false end
  if unseen(at) + units <= room then return false end
  return not (positive and call('ZCARD', began) == 0)
end

local function reserve(member, units, at, room, positive, allotment)
  local refusal = at > now and at < ENDLESS and {0, 'future', -1} or closed(at, room)
  if not refusal and spent(at, units, room, positive, allotment) then refusal = {0, 'spent', -1} end
  -- one that is there already is sent again, by a client that lost the first answer
  local again
  if refusal then
    again = call('ZSCORE', began, member)
  else
    again = call('ZADD', began, 'NX', now, member) == 0
  end
  if again then return {1, book.probe == member and 1 or 0, now} end
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
  if time and time >= get('opened') then
    if window >= RAMP_END then
      set('window', nil)
    elseif window > 0 then
      set('window', window * 2)
    elseif book.probe == member then
      set('window', 2)
    end
  end
  return {1}
end

local function overloaded(retry_after)
  set('retry', math.max(get('retry'), now + retry_after))
  set('rejected', now)
  set('window', 0)
  set('probe', '')
  return {1}
end

for _, member in ipairs(call('ZRANGEBYSCORE', leases, '(' .. string.format('%d', now + lease), '+inf')) do
  lease_of[member] = now + lease
end
for _, member in ipairs(call('ZRANGEBYSCORE', leases, '-inf', now)) do
  lease_of[member] = false
  if call('ZREM', began, member) == 1 then add(-units_of(member)) end
  freed = true
end

local answers, at = {now, life()}, 4
while ARGV[at] do
  local what = ARGV[at]
  if what == 'R' then
    answers[#answers + 1] = reserve(ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]),
      tonumber(ARGV[at + 4]), ARGV[at + 5] == '1', tonumber(ARGV[at + 6]))
    at = at + 7
  elseif what == 'H' then
    answers[#answers + 1] = heartbeat(ARGV[at + 1], ARGV[at + 2])
    at = at + 3
  elseif what == 'F' then
    answers[#answers + 1] = release(ARGV[at + 1], ARGV[at + 2] == '1')
    at = at + 3
  elseif what == 'L' then
    add_up()
    answers[#answers + 1] = {in_flight()}
    at = at + 1
  else
    answers[#answers + 1] = overloaded(tonumber(ARGV[at + 1]))
    at = at + 2
  end
end

local told = freed and book.wanted
if told then set('wanted', nil) end
write()
-- what nobody touches for a day means nothing any more, and a Retry-After is never that long
call('PEXPIRE', began, lease + 60000)
call('PEXPIRE', leases, lease + 60000)
call('PEXPIRE', state, 86400000)
if told then call('PUBLISH', channel, 'freed') end
return answers
