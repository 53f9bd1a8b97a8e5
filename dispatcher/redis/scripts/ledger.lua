-- The book of dispatcher/account.py, kept in the broker: several operations of one holder, in their order.
-- KEYS: began (zset: member by time), leases (zset: member by end of lease), state (hash); all of one hash tag.
-- ARGV: the channel for wake-ups, the lease in ms, the life that the asker knows or '', then operations:
--   R member units at floor(headroom) headroom>0   reserve
--   H member began                                 heartbeat
--   F member accepted                              release
--   O retry_after_ms                               overloaded
-- A member is "units:token". The answer: the time, the life of this book, then for each operation a list: of R {1, is a probe, began} or
-- {0, why not, until}.
local began, leases, state = KEYS[1], KEYS[2], KEYS[3]
local channel, lease, known = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local RAMP_END, ENDLESS, LONGEST_RETRY_AFTER = 1024, 2 ^ 53, 3600000
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local freed = false

local function get(field)
  return tonumber(redis.call('HGET', state, field) or '-1')
end

local function forget(member)
  redis.call('ZREM', leases, member)
  return redis.call('ZREM', began, member)
end

-- A clock that goes back, as after a failover, closes nothing for good.
local function clamp(field, latest)
  if get(field) > latest then redis.call('HSET', state, field, latest) end
end

-- A book that its askers know by another life is empty because the broker lost the old one: what they have on its way is
-- written in again by their heartbeats, within a lease. Until then nobody is let in.
local function life()
  local this = redis.call('HGET', state, 'life')
  if not this then
    this = clock[1] .. '.' .. clock[2]
    redis.call('HSET', state, 'life', this)
  end
  if known ~= '' and known ~= this then
    redis.call('HSETNX', state, 'recounted', now + lease)
  end
  return this
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
    local probe = redis.call('HGET', state, 'probe')
    if probe and redis.call('ZSCORE', began, probe) then return {0, 'probe', -1} end
    return nil
  end
  if room <= window then
    redis.call('HDEL', state, 'window')
  elseif redis.call('ZCOUNT', began, get('opened'), '+inf') >= window then
    return {0, 'ramp', -1}
  end
  return nil
end

local function spent(at, units, room, positive)
  local unseen = 0
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', began, at, '+inf')) do
    unseen = unseen + tonumber(string.match(member, '^%d+'))
  end
  if unseen + units <= room then return false end
  return not (positive and redis.call('ZCARD', began) == 0)
end

local function reserve(member, units, at, room, positive)
  if redis.call('ZSCORE', began, member) then -- sent again by a client that lost the first answer
    return {1, redis.call('HGET', state, 'probe') == member and 1 or 0, now}
  end
  local refusal = at > now and at < ENDLESS and {0, 'future', -1} or closed(at, room)
  if not refusal and spent(at, units, room, positive) then refusal = {0, 'spent', -1} end
  if refusal then
    redis.call('HSET', state, 'wanted', 1)
    return refusal
  end
  local probe = get('window') == 0
  if probe then redis.call('HSET', state, 'probe', member, 'opened', now) end
  redis.call('ZADD', began, now, member)
  redis.call('ZADD', leases, now + lease, member)
  return {1, probe and 1 or 0, now}
end

local function release(member, accepted)
  local time = tonumber(redis.call('ZSCORE', began, member) or '-1')
  if forget(member) == 0 then return {0} end
  freed = true
  local window = get('window')
  if accepted and window >= 0 and time >= get('opened') then
    if window >= RAMP_END then
      redis.call('HDEL', state, 'window')
    elseif window > 0 then
      redis.call('HSET', state, 'window', window * 2)
    elseif redis.call('HGET', state, 'probe') == member then
      redis.call('HSET', state, 'window', 2)
    end
  end
  return {1}
end

local function overloaded(retry_after)
  local retry = math.max(get('retry'), now + retry_after)
  redis.call('HSET', state, 'rejected', now, 'retry', retry, 'window', 0, 'probe', '')
  return {1}
end

for _, member in ipairs(redis.call('ZRANGEBYSCORE', leases, '(' .. string.format('%d', now + lease), '+inf')) do
  redis.call('ZADD', leases, now + lease, member)
end
for _, member in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now)) do
  forget(member)
  freed = true
end

local answers, at = {now, life()}, 4
while ARGV[at] do
  local what = ARGV[at]
  if what == 'R' then
    answers[#answers + 1] = reserve(ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]),
      tonumber(ARGV[at + 4]), ARGV[at + 5] == '1')
    at = at + 6
  elseif what == 'H' then
    redis.call('ZADD', began, 'NX', ARGV[at + 2], ARGV[at + 1])
    redis.call('ZADD', leases, now + lease, ARGV[at + 1])
    answers[#answers + 1] = {1}
    at = at + 3
  elseif what == 'F' then
    answers[#answers + 1] = release(ARGV[at + 1], ARGV[at + 2] == '1')
    at = at + 3
  else
    answers[#answers + 1] = overloaded(tonumber(ARGV[at + 1]))
    at = at + 2
  end
end

-- what nobody touches for a day means nothing any more, and a Retry-After is never that long
redis.call('PEXPIRE', began, lease + 60000)
redis.call('PEXPIRE', leases, lease + 60000)
redis.call('PEXPIRE', state, 86400000)
if freed and redis.call('HDEL', state, 'wanted') == 1 then redis.call('PUBLISH', channel, 'freed') end
return answers
