-- One operation on the places of one key of a quota: a sorted set, each place by the end of its lease or window.
-- KEYS: the set. ARGV: the channel for wake-ups, what, id, limit, ms that a place lasts.
-- take: {1, 0} or {0, when the first place ends}; heartbeat and give: {1 or 0, 0}.
local places, channel, what, id = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local limit, lasts = tonumber(ARGV[4]), tonumber(ARGV[5])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

-- Where no memory is left a script may write once it has written: Redis refuses its first command that needs memory, not
-- the later ones. Without a place nothing is sent that would free memory. No member is ''.
redis.call('ZREM', places, '')

if what == 'give' then
  local given = redis.call('ZREM', places, id)
  if given == 1 then redis.call('PUBLISH', channel, places) end
  return {given, 0}
end
if what == 'take' then
  redis.call('ZREMRANGEBYSCORE', places, '-inf', now)
  if redis.call('ZCARD', places) >= limit and not redis.call('ZSCORE', places, id) then
    local first = redis.call('ZRANGE', places, 0, 0, 'WITHSCORES')
    return {0, tonumber(first[2] or '-1')}
  end
end
redis.call('ZADD', places, now + lasts, id)
redis.call('PEXPIRE', places, lasts + 60000)
return {1, 0}
