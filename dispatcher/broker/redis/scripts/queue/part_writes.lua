-- Writes that all items of one script have in common, done once when the script ends: a command costs as much as many
-- lines of Lua. Not for keys that the same script reads again after the change: it would read the old value.
local counted, sorted, held = {}, {}, {}

local function count(name)
  counted[name] = (counted[name] or 0) + 1
end

-- Counts a request without a result (sign 1), or no longer (sign -1).
local function hold(tenant, size, sign)
  for field, by in pairs({ n = sign, b = sign * size, ['n:' .. tenant] = sign, ['b:' .. tenant] = sign * size }) do
    held[field] = (held[field] or 0) + by
  end
end

-- Sets the score of a member of a sorted set, or removes the member if the score is false.
local function score_later(name, member, score)
  local set = sorted[name] or {}
  sorted[name] = set
  set[member] = score
end

-- `unpack` fails for more values than Lua's C stack holds, 8000 in Lua 5.1 (LUAI_MAXCSTACK).
local function in_pieces(command, key, words)
  for first = 1, #words, 1000 do
    call(command, key, unpack(words, first, math.min(first + 999, #words)))
  end
end

local function write_later()
  for name, by in pairs(counted) do
    call('HINCRBY', P .. 'counts', name, by)
  end
  for field, by in pairs(held) do
    if by ~= 0 and call('HINCRBY', P .. 'load', field, by) <= 0 then
      call('HDEL', P .. 'load', field)
    end
  end
  for name, set in pairs(sorted) do
    local scored, removed = {}, {}
    for member, score in pairs(set) do
      if score then
        scored[#scored + 1], scored[#scored + 2] = score, member
      else
        removed[#removed + 1] = member
      end
    end
    in_pieces('ZADD', P .. name, scored)
    in_pieces('ZREM', P .. name, removed)
  end
end
