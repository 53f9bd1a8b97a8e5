-- Leases the oldest results to a consumer. Arguments: limit, ms, nonce, bytes of bodies after which to stop.
-- Answers { { fence, fields of the result } ... }. Leases that have ended come back first, at their old place.
local limit, ms, nonce, room = tonumber(ARGV[FIRST]), tonumber(ARGV[FIRST + 1]), ARGV[FIRST + 2], tonumber(ARGV[FIRST + 3])
for _, n in ipairs(call('ZRANGEBYSCORE', P .. 'held', '-inf', NOW, 'LIMIT', 0, 1000)) do
  local finished = call('HGET', P .. 'r:' .. n, 'finished')
  call('ZREM', P .. 'held', n)
  if finished then
    call('ZADD', P .. 'ready', finished, n)
  end
end

local leased = {}
for _, n in ipairs(call('ZRANGE', P .. 'ready', 0, limit - 1)) do
  local key = P .. 'r:' .. n
  local r = call('HMGET', key, 'id', 'token', 'status', 'body', 'code', 'message', 'attempts', 'finished')
  call('ZREM', P .. 'ready', n)
  if r[1] then
    call('HSET', key, 'lease', n .. '.' .. nonce)
    call('ZADD', P .. 'held', NOW + ms, n)
    leased[#leased + 1] = { n .. '.' .. nonce, r }
    room = room - #r[4]
    if room < 0 then
      break
    end
  end
end
return leased
