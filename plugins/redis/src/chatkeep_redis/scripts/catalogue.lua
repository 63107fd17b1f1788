-- The sessions of one scope by their last write, and, in a place of its own, the names of all scopes.
--
-- What is catalogued has the time of that, in microseconds by this server's clock. A sorted set holds the negative of
-- it, so that the newest come first and those of one instant in the order of their names. Every answer begins with the
-- time. What is dropped is what was catalogued before an instant: whoever begins a session catalogues it before, and
-- again after, so that it is there by the time at which it is acknowledged.
--
-- KEYS  1 sorted set of sessions        ARGV  "add", session, "known" to add it only where it is; says whether it is
--                                             "drop", not after, sessions
--                                             "page", place, how many
--                                             "oldest", first and last rank
-- KEYS  1 sorted set of scopes,         ARGV  "enter", scope
--         every score 0, 2 hash               "leave", not after, scope
--         with their times                    "scopes", lower bound, upper bound, how many

local call = redis.call
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
local what = ARGV[1]
if what == 'add' then
  if ARGV[3] == 'known' and not call('ZSCORE', KEYS[1], ARGV[2]) then
    return { now, 0 }
  end
  call('ZADD', KEYS[1], -now, ARGV[2])
  return { now, 1 }
elseif what == 'drop' then
  for number = 3, #ARGV do
    local score = call('ZSCORE', KEYS[1], ARGV[number])
    if score and -tonumber(score) <= tonumber(ARGV[2]) then
      call('ZREM', KEYS[1], ARGV[number])
    end
  end
  return { now, call('ZCARD', KEYS[1]) }
elseif what == 'page' then
  return { now, call('ZRANGEBYSCORE', KEYS[1], ARGV[2], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[3]) }
elseif what == 'oldest' then
  return { now, call('ZREVRANGE', KEYS[1], ARGV[2], ARGV[3], 'WITHSCORES') }
elseif what == 'enter' then
  call('ZADD', KEYS[1], 0, ARGV[2])
  call('HSET', KEYS[2], ARGV[2], now)
  return { now }
elseif what == 'leave' then
  local time = call('HGET', KEYS[2], ARGV[3])
  if time and tonumber(time) <= tonumber(ARGV[2]) then
    call('ZREM', KEYS[1], ARGV[3])
    call('HDEL', KEYS[2], ARGV[3])
  end
  return { now }
end
return { now, call('ZRANGEBYLEX', KEYS[1], ARGV[2], ARGV[3], 'LIMIT', 0, ARGV[4]) }
