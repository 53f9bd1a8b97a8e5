-- One operation on the grants of one key of a quota: a sorted set, each grant by the end of its lease or window.
-- KEYS: the set. ARGV: the channel for wake-ups, the operation, the grant's id, the limit, ms that a grant lasts.
-- Answers: take {1, 0} or {0, when the first grant ends}; heartbeat and give {1 or 0, 0}.
-- Comments begin their lines: they are removed before the script is sent, see SCRIPT in dispatcher/broker/redis/ledger.py.
local grants, channel, operation, id = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local limit, duration = tonumber(ARGV[4]), tonumber(ARGV[5])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

-- When Redis is out of memory it refuses the first write of a script if that write needs memory, and no later one
-- (https://redis.io/docs/latest/develop/programmability/eval-intro/#execution-under-low-memory-conditions). This write
-- needs none and changes nothing, since no member is ''. So quotas work on, and requests are sent, which frees memory.
redis.call('ZREM', grants, '')

if operation == 'give' then
  local given = redis.call('ZREM', grants, id)
  if given == 1 then redis.call('PUBLISH', channel, grants) end
  return {given, 0}
end
-- A sliding window: each start stays for its own window, so no window anywhere has more than `limit`. An id that is there
-- already is a repeated operation whose first answer was lost: it gets its grant again.
if operation == 'take' then
  redis.call('ZREMRANGEBYSCORE', grants, '-inf', now)
  if redis.call('ZCARD', grants) >= limit and not redis.call('ZSCORE', grants, id) then
    local first = redis.call('ZRANGE', grants, 0, 0, 'WITHSCORES')
    return {0, tonumber(first[2] or '-1')}
  end
end
redis.call('ZADD', grants, now + duration, id)
redis.call('PEXPIRE', grants, duration + 60000)
return {1, 0}
