BEGIN TRANSACTION;
CREATE TABLE chatkeep_batches (   -- appends with a batch id, in order of n
    n INTEGER PRIMARY KEY,
    l INTEGER NOT NULL,
    token BLOB NOT NULL,
    first INTEGER NOT NULL,
    final INTEGER NOT NULL,
    seqs TEXT NOT NULL,
    UNIQUE (l, token)
) STRICT;
INSERT INTO "chatkeep_batches" VALUES(1,1,X'1C6616224336F5D2EA1E55C74768EAC0',1,1,'[1]');
CREATE TABLE chatkeep_format (version INTEGER NOT NULL) STRICT;
INSERT INTO "chatkeep_format" VALUES(1);
CREATE TABLE chatkeep_logs (
    l INTEGER PRIMARY KEY,
    k INTEGER NOT NULL,
    name TEXT NOT NULL,
    tail INTEGER NOT NULL DEFAULT 0,
    last INTEGER NOT NULL DEFAULT 0,
    size INTEGER NOT NULL DEFAULT 0,
    rewrite INTEGER NOT NULL DEFAULT 0,
    looked INTEGER NOT NULL DEFAULT 0,          -- up to where trimming has looked: it need not look there again
    lead INTEGER NOT NULL DEFAULT 0,            -- how many records stand there
    turn INTEGER NOT NULL DEFAULT 0,            -- the first turn start behind the first record; 0: not up to there
    UNIQUE (k, name)
) STRICT;
INSERT INTO "chatkeep_logs" VALUES(1,1,'',4,4,4,0,0,0,0);
INSERT INTO "chatkeep_logs" VALUES(2,1,'audit',1,1,1,0,0,0,0);
CREATE TABLE chatkeep_records (
    pos INTEGER PRIMARY KEY,                    -- l << 32 | seq: a log's records lie side by side, in order
    id TEXT,
    role TEXT NOT NULL,
    starts_turn INTEGER NOT NULL,
    format TEXT NOT NULL,
    created REAL NOT NULL,
    text TEXT,
    payload BLOB NOT NULL
) STRICT;
INSERT INTO "chatkeep_records" VALUES(4294967297,'m-1','user',1,'chat/1',1.79605576156653571132e+09,NULL,X'7B22726F6C65223A2275736572222C22636F6E74656E74223A225768657265206973206D79206261673F20F09FA7B3222C226964223A226D2D31227D');
INSERT INTO "chatkeep_records" VALUES(4294967298,NULL,'assistant',0,'chat/1',1.79605576156797838204e+09,NULL,X'7B22726F6C65223A22617373697374616E74222C22746F6F6C5F63616C6C73223A5B7B226964223A2263616C6C2D31222C226E616D65223A2266696E645F626167222C22617267756D656E7473223A227B5C227461675C223A205C22534B203132335C227D227D5D7D');
INSERT INTO "chatkeep_records" VALUES(4294967299,NULL,'tool',0,'chat/1',1.79605576156797838204e+09,NULL,X'7B22726F6C65223A22746F6F6C222C22636F6E74656E74223A224F736C6F222C22746F6F6C5F63616C6C5F6964223A2263616C6C2D31227D');
INSERT INTO "chatkeep_records" VALUES(4294967300,NULL,'assistant',0,'chat/1',1.7960557615685758591e+09,NULL,X'7B22726F6C65223A22617373697374616E74222C22636F6E74656E74223A22496E204F736C6F2E227D');
INSERT INTO "chatkeep_records" VALUES(8589934593,NULL,'user',1,'openai/1',1.79605576156931638718e+09,NULL,X'7B22726F6C65223A2275736572222C22636F6E74656E74223A226C6F6E65205C756438303020737572726F67617465227D');
CREATE TABLE chatkeep_sessions (  -- one life of a session each; with an empty id, a scope's own state
    k INTEGER PRIMARY KEY,
    scope TEXT NOT NULL,                        -- Scope.address
    id TEXT NOT NULL,
    life TEXT NOT NULL,
    created REAL NOT NULL,
    updated REAL NOT NULL,                      -- of the last write, but for those within a second of it
    expires REAL,
    ttl REAL,
    meta TEXT NOT NULL DEFAULT '{}',
    fence INTEGER NOT NULL DEFAULT 0,
    lease_owner TEXT,
    lease_until REAL,
    UNIQUE (scope, id)
) STRICT;
INSERT INTO "chatkeep_sessions" VALUES(1,'[null,"acme","alice"]','support-42','a70e2bc01f7c6a01',1.79605576156653571132e+09,1.79605576156653571132e+09,NULL,NULL,'{"title": "A bag", "service": "{\"task\":\"t-1\"}", "m:topic": "\"bags\""}',0,NULL,NULL);
INSERT INTO "chatkeep_sessions" VALUES(2,'[null,"acme","alice"]','','cbdc7a76459835fb',1.79605576157187247273e+09,1.79605576157187247273e+09,NULL,NULL,'{}',0,NULL,NULL);
CREATE TABLE chatkeep_state (
    k INTEGER NOT NULL,
    key BLOB NOT NULL,                          -- UTF-8, so that its order is the order of bytes
    version TEXT NOT NULL,
    format TEXT NOT NULL,
    value BLOB NOT NULL,
    UNIQUE (k, key)
) STRICT;
INSERT INTO "chatkeep_state" VALUES(1,X'6C616E6775616765','f99b38fd3bcb82ece0b073f83200e5d0-0','json/1',X'226E6F22');
INSERT INTO "chatkeep_state" VALUES(1,X'626167','38cb0d06ba86ea999bd10a17ccc9b5b0-0','json/1',X'7B22776569676874223A32332E352C2270686F746F223A7B2224636861746B656570223A226279746573222C2276223A224150383D227D7D');
INSERT INTO "chatkeep_state" VALUES(2,X'706C616E','fef1253c21fdaad828673c5bf450c24d-0','json/1',X'5B22676F6C64222C315D');
CREATE TABLE chatkeep_trimmed (   -- ids of records that were trimmed lately
    pos INTEGER PRIMARY KEY,
    id TEXT NOT NULL
) STRICT;
CREATE INDEX chatkeep_sessions_by_write ON chatkeep_sessions (scope, updated);
CREATE INDEX chatkeep_sessions_by_expiry ON chatkeep_sessions (expires) WHERE expires IS NOT NULL;
CREATE INDEX chatkeep_sessions_by_service ON chatkeep_sessions (scope, meta ->> '$.service')
    WHERE meta ->> '$.service' IS NOT NULL;
CREATE UNIQUE INDEX chatkeep_records_by_id ON chatkeep_records (pos >> 32, id) WHERE id IS NOT NULL;
CREATE UNIQUE INDEX chatkeep_trimmed_by_id ON chatkeep_trimmed (pos >> 32, id);
CREATE INDEX chatkeep_batches_in_order ON chatkeep_batches (l, n);
COMMIT;
