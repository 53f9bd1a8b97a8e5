-- Accepts requests. Items as in part_accept.lua. Answers for each:
-- { 'new', created } | { 'same', id, token, deadline, created } | { 'conflict' } | { 'past', NOW } | { 'full', limit }
local function by_key(key, digest)
  local k = call('HMGET', key, 'digest', 'id', 'token', 'deadline', 'created')
  if not k[1] then
    return nil
  end
  return k[1] == digest and { 'same', k[2], k[3], k[4], k[5] } or { 'conflict' }
end

local function submit(item)
  local key = P .. 'k:' .. item[3] .. '\0' .. item[10]
  local earlier = known(item[1], item[2]) or (item[10] ~= '' and by_key(key, item[11])) or nil
  if earlier then
    return earlier
  end
  local deadline = tonumber(item[5])
  if deadline <= NOW then
    return { 'past', NOW }
  end
  local limit = full(item[3], tonumber(item[7]))
  if limit then
    return { 'full', limit }
  end
  if item[6] == '0' then
    item[6] = NOW
  end
  if item[10] ~= '' then
    call('HSET', key, 'digest', item[11], 'id', item[1], 'token', item[2], 'deadline', item[5], 'created', item[6])
    call('PEXPIRE', key, deadline + KEPT - NOW) -- as long as its result can exist
  end
  enqueue(accept(item, ''))
  return { 'new', item[6] }
end

local answers = {}
for first = FIRST, #ARGV, 12 do
  answers[#answers + 1] = submit({ unpack(ARGV, first, first + 11) })
end
return answers
