-- What the items of one script change alike is written once, when the script ends: a command costs as much as many lines
-- of these. Nothing that a script reads again after it was changed may be changed this way.
local counted, sorted = {}, {}

local function count(name)
  counted[name] = (counted[name] or 0) + 1
end

-- score: false to remove it
local function place_later(name, member, score)
  local set = sorted[name] or {}
  sorted[name] = set
  set[member] = score
end

local function in_pieces(command, key, words)
  for first = 1, #words, 1000 do
    call(command, key, unpack(words, first, math.min(first + 999, #words)))
  end
end

local function write_later()
  for name, by in pairs(counted) do
    call('HINCRBY', P .. 'counts', name, by)
  end
  for name, set in pairs(sorted) do
    local placed, removed = {}, {}
    for member, score in pairs(set) do
      if score then
        placed[#placed + 1], placed[#placed + 2] = score, member
      else
        removed[#removed + 1] = member
      end
    end
    in_pieces('ZADD', P .. name, placed)
    in_pieces('ZREM', P .. name, removed)
  end
end
