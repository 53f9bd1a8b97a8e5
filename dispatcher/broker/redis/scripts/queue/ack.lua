-- Removes results that their consumers have processed. Arguments: fences of leases. Answers how many were still theirs.
local acked = 0
for i = FIRST, #ARGV do
  local n = number_of(ARGV[i])
  local key = P .. 'r:' .. n
  local r = call('HMGET', key, 'lease', 'fence', 'id', 'token')
  if r[1] == ARGV[i] then
    call('DEL', key)
    call('ZREM', P .. 'held', n)
    call('ZREM', P .. 'ready', n)
    call('ZREM', P .. 'i:' .. r[3], r[4])
    if r[2] ~= '' then
      call('SET', P .. 'f:' .. n, r[2], 'PX', REMEMBERED)
    end
    acked = acked + 1
  end
end
return acked
