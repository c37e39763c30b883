-- What `outhaul` of commit 551c3e1 made and wrote in postgres: see earlier.rs.
CREATE TABLE IF NOT EXISTS "outbox" (
  "seq" bigint GENERATED ALWAYS AS IDENTITY,
  "shard" smallint NOT NULL GENERATED ALWAYS AS ((('x' || substr(md5(coalesce("msg_key", "id")), 1, 8))::bit(32)::bigint % 4)::smallint) STORED,
  "id" varchar(64) COLLATE "C" NOT NULL DEFAULT gen_random_uuid()::text,
  "topic" varchar(255) COLLATE "C" NOT NULL,
  "msg_key" varchar(255) COLLATE "C",
  "headers" json,
  "payload" bytea NOT NULL,
  "created_at" timestamptz(6) NOT NULL DEFAULT clock_timestamp(),
  "available_at" timestamptz(6),
  PRIMARY KEY ("shard", "seq")
) WITH (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
  autovacuum_vacuum_insert_threshold = -1,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000, vacuum_truncate = false,
  toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 5000,
  toast.autovacuum_vacuum_cost_delay = 0, toast.vacuum_truncate = false
);
CREATE TABLE IF NOT EXISTS "outbox_log" (
  shard smallint NOT NULL,
  base_position bigint NOT NULL,
  count integer NOT NULL,
  first_created_at timestamptz(6) NOT NULL,
  last_created_at timestamptz(6) NOT NULL,
  moved_at timestamptz(6) NOT NULL,
  codec smallint NOT NULL,
  id_filter bytea NOT NULL,
  chunk bytea NOT NULL,
  PRIMARY KEY (shard, base_position)
);
ALTER TABLE "outbox_log" ALTER COLUMN id_filter SET STORAGE EXTERNAL;
ALTER TABLE "outbox_log" ALTER COLUMN chunk SET STORAGE EXTERNAL;
CREATE TABLE IF NOT EXISTS "outbox_receipt" (
  shard smallint NOT NULL,
  number bigint NOT NULL,
  epoch bigint NOT NULL,
  log_end bigint NOT NULL,
  from_position bigint,
  to_position bigint,
  created_at timestamptz(6) NOT NULL,
  lanes bytea NOT NULL,
  PRIMARY KEY (shard, number)
);
ALTER TABLE "outbox_receipt" ALTER COLUMN lanes SET STORAGE EXTERNAL;
CREATE TABLE IF NOT EXISTS "outbox_parked" (
  destination varchar(255) COLLATE "C" NOT NULL,
  shard smallint NOT NULL,
  position bigint NOT NULL,
  id text COLLATE "C" NOT NULL,
  msg_key text COLLATE "C",
  state varchar(16) NOT NULL,
  attempts bigint NOT NULL,
  due_at bigint NOT NULL,
  error_code varchar(64) NOT NULL,
  error_text text NOT NULL,
  first_failed_at bigint NOT NULL,
  last_failed_at bigint NOT NULL,
  codec smallint NOT NULL,
  message bytea NOT NULL,
  oversize_payload bytea,
  PRIMARY KEY (destination, shard, position)
);
ALTER TABLE "outbox_parked" ALTER COLUMN message SET STORAGE EXTERNAL;
CREATE TABLE IF NOT EXISTS "outbox_lease" (
  shard smallint NOT NULL PRIMARY KEY,
  owner varchar(255) COLLATE "C",
  epoch bigint NOT NULL,
  expires_at timestamptz(6)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
CREATE TABLE IF NOT EXISTS "outbox_instance" (
  owner varchar(255) COLLATE "C" NOT NULL PRIMARY KEY,
  version varchar(64) NOT NULL,
  draining boolean NOT NULL,
  heartbeat timestamptz(6) NOT NULL,
  troubles text NOT NULL DEFAULT ''
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
CREATE TABLE IF NOT EXISTS "outbox_meta" (
  name varchar(300) COLLATE "C" NOT NULL PRIMARY KEY,
  value text NOT NULL
);
INSERT INTO public.outbox (seq, id, topic, msg_key, headers, payload, created_at, available_at) OVERRIDING SYSTEM VALUE VALUES (43, 'hot0', 't', 'k1', NULL, '\x30', '2026-11-30 15:40:23.080326+00', NULL);
INSERT INTO public.outbox (seq, id, topic, msg_key, headers, payload, created_at, available_at) OVERRIDING SYSTEM VALUE VALUES (44, 'hot1', 't', 'k1', NULL, '\x31', '2026-11-30 15:40:23.087291+00', NULL);
INSERT INTO public.outbox (seq, id, topic, msg_key, headers, payload, created_at, available_at) OVERRIDING SYSTEM VALUE VALUES (45, 'hot2', 't', 'k1', NULL, '\x32', '2026-11-30 15:40:23.087394+00', NULL);
INSERT INTO public.outbox (seq, id, topic, msg_key, headers, payload, created_at, available_at) OVERRIDING SYSTEM VALUE VALUES (46, 'hot3', 't', 'k1', NULL, '\x33', '2026-11-30 15:40:23.087407+00', NULL);
INSERT INTO public.outbox (seq, id, topic, msg_key, headers, payload, created_at, available_at) OVERRIDING SYSTEM VALUE VALUES (47, 'hot4', 't', 'k1', NULL, '\x34', '2026-11-30 15:40:23.087416+00', NULL);
INSERT INTO public.outbox (seq, id, topic, msg_key, headers, payload, created_at, available_at) OVERRIDING SYSTEM VALUE VALUES (48, 'later', 't', NULL, NULL, '\x31', '2026-11-30 15:40:23.087425+00', '2037-12-31 00:00:00+00');
INSERT INTO public.outbox_lease (shard, owner, epoch, expires_at) VALUES (-1, NULL, 0, NULL);
INSERT INTO public.outbox_lease (shard, owner, epoch, expires_at) VALUES (0, NULL, 2, NULL);
INSERT INTO public.outbox_lease (shard, owner, epoch, expires_at) VALUES (1, NULL, 2, NULL);
INSERT INTO public.outbox_lease (shard, owner, epoch, expires_at) VALUES (2, NULL, 2, NULL);
INSERT INTO public.outbox_lease (shard, owner, epoch, expires_at) VALUES (3, NULL, 2, NULL);
INSERT INTO public.outbox_log (shard, base_position, count, first_created_at, last_created_at, moved_at, codec, id_filter, chunk) VALUES (1, 0, 8, '2026-11-30 15:40:21.545153+00', '2026-11-30 15:40:21.545507+00', '2026-11-30 15:40:22.140857+00', 1, '\x610df0a4e9084247d2ff1b96', '\x28b52ffd209be5020072c4101ac0a7035bbfc7bef8966531695a6ed7b6a98cd4aa92b60f9152cafc77e2a2ff3b07e5ddfd760acafc84a9532973a3d29fd9d98f4cee8d41f3306b390a2210a3000e05090048190e8c01bba32e037b81b19ad711b5e1669b64');
INSERT INTO public.outbox_log (shard, base_position, count, first_created_at, last_created_at, moved_at, codec, id_filter, chunk) VALUES (2, 0, 16, '2026-11-30 15:40:21.544928+00', '2026-11-30 15:40:21.545514+00', '2026-11-30 15:40:22.140857+00', 1, '\xec66b2308823104eee6c193029e601ffe32b0de29013a8d5', '\x28b52ffd602800ad0400c2c7191fb0271d788108962c6b00018b484410930a50edb5a5a78dd01c74c9a594920469f74748b4fb2b069edd9f92de55fd298954f5a8d5fa4b3025ff0689d0b1f92748dbfc0b604a372511ba2578ce724c9ddb39d28520857839a67c4bc523d1348d051610070316201300600c130c07c6c06e622e0366c1d812ae008b81c5601b600cd83d7a87119b176197a176216a4ba89d65');
INSERT INTO public.outbox_log (shard, base_position, count, first_created_at, last_created_at, moved_at, codec, id_filter, chunk) VALUES (3, 0, 16, '2026-11-30 15:40:21.54074+00', '2026-11-30 15:40:21.545499+00', '2026-11-30 15:40:22.140857+00', 1, '\x3ac7201d8f8a31ee2770d83068dfb010d36249c4ad82af36', '\x28b52ffd602800ad04008247191fb0271d8d24c90571c258f1842482985cc8913bca242c91ac9b4e1629a52401bcdb468f3bbbbb6d81cbddb601f2ffffcfe7db16643e5ada26c06b699b72a9a56d0b327729774e17017fc61a7a5701724949424932d65076a123a26834188b32241087234014004c300c8c812b8031c018b0039781c912ee058b81c5601bb07bf40e24363762f322ec32d42e446d09b5b30c');
INSERT INTO public.outbox_log (shard, base_position, count, first_created_at, last_created_at, moved_at, codec, id_filter, chunk) VALUES (0, 0, 2, '2026-11-30 15:40:22.354661+00', '2026-11-30 15:40:22.354882+00', '2026-11-30 15:40:22.861271+00', 1, '\x1060000e2800c592', '\x28b52ffd205189020002010466696c6552cabb87a587e0b006036261640174036b70045b315d0100030d6e6f7420616e206f626a656374077b226e223a317d02ba0306626568696e640174036b7000010000077b226e223a327d');
INSERT INTO public.outbox_meta (name, value) VALUES ('schema_version', '1');
INSERT INTO public.outbox_meta (name, value) VALUES ('shards', '4');
INSERT INTO public.outbox_meta (name, value) VALUES ('mode', 'move');
INSERT INTO public.outbox_meta (name, value) VALUES ('shard_by', 'key');
INSERT INTO public.outbox_parked (destination, shard, "position", id, msg_key, state, attempts, due_at, error_code, error_text, first_failed_at, last_failed_at, codec, message, oversize_payload) VALUES ('file', 0, 0, 'bad', 'kp', 'dead', 0, 0, 'OUT-4002', 'the headers cannot be used: not an object', 1796053222851050, 1796053222851050, 1, '\x28b52ffd2036b1010001010466696c6552cabb87a587e0b006036261640174036b70045b315d0100030d6e6f7420616e206f626a656374077b226e223a317d', NULL);
INSERT INTO public.outbox_parked (destination, shard, "position", id, msg_key, state, attempts, due_at, error_code, error_text, first_failed_at, last_failed_at, codec, message, oversize_payload) VALUES ('file', 0, 1, 'behind', 'kp', 'waiting', 0, 0, 'OUT-4009', 'waits behind a parked message of its key', 1796053222851050, 1796053222851050, 1, '\x28b52ffd202841010001010466696c655484bf87a587e0b00606626568696e640174036b7000010000077b226e223a327d', NULL);
INSERT INTO public.outbox_receipt (shard, number, epoch, log_end, from_position, to_position, created_at, lanes) VALUES (3, 0, 1, 0, NULL, NULL, '2026-11-30 15:40:22.051472+00', '\x0128b52ffd200a510000010466696c6500000000');
INSERT INTO public.outbox_receipt (shard, number, epoch, log_end, from_position, to_position, created_at, lanes) VALUES (0, 0, 1, 0, NULL, NULL, '2026-11-30 15:40:22.072621+00', '\x0128b52ffd200a510000010466696c6500000000');
INSERT INTO public.outbox_receipt (shard, number, epoch, log_end, from_position, to_position, created_at, lanes) VALUES (1, 0, 1, 0, NULL, NULL, '2026-11-30 15:40:22.072621+00', '\x0128b52ffd200a510000010466696c6500000000');
INSERT INTO public.outbox_receipt (shard, number, epoch, log_end, from_position, to_position, created_at, lanes) VALUES (2, 0, 1, 0, NULL, NULL, '2026-11-30 15:40:22.072621+00', '\x0128b52ffd200a510000010466696c6500000000');
INSERT INTO public.outbox_receipt (shard, number, epoch, log_end, from_position, to_position, created_at, lanes) VALUES (1, 1, 1, 8, NULL, NULL, '2026-11-30 15:40:22.140857+00', '\x0128b52ffd200a510000010466696c6500000000');
INSERT INTO public.outbox_receipt (shard, number, epoch, log_end, from_position, to_position, created_at, lanes) VALUES (2, 1, 1, 16, NULL, NULL, '2026-11-30 15:40:22.140857+00', '\x0128b52ffd200a510000010466696c6500000000');
INSERT INTO public.outbox_receipt (shard, number, epoch, log_end, from_position, to_position, created_at, lanes) VALUES (3, 1, 1, 16, 0, 15, '2026-11-30 15:40:22.140857+00', '\x0128b52ffd20974d0300b284111bb0351d144dd243112c947974080cb3d85b4ab9b794591408379f76fbb52bf550fed26df1967efbdd943a5d449a2ed5224c547c601b9f6d41011c490059cc31e70c464198030e004220028c01c66019edd491a61ae14ac85087411b4006b801da0032de559c');
INSERT INTO public.outbox_receipt (shard, number, epoch, log_end, from_position, to_position, created_at, lanes) VALUES (1, 2, 1, 8, 0, 7, '2026-11-30 15:40:22.160156+00', '\x0128b52ffd2059450200b403010466696c650808000800cc8eeda487e0b006010104323034360100010104323137323239383432363535343638323831300100010104323933380504036080010618637902');
INSERT INTO public.outbox_receipt (shard, number, epoch, log_end, from_position, to_position, created_at, lanes) VALUES (2, 2, 1, 16, 0, 15, '2026-11-30 15:40:22.160156+00', '\x0128b52ffd20a12d0300c2041119d0a5038044853994508d43f5709a4c5b4a29e520364916a40cf9fe22e25ec4facc3b883fd56dc6bff9d0aaea4f629f2c6665cc97c50c38526124482a53c604c420140b0e004220028c01c600638031c0186008b8038c01c600638031c018e3509e');
INSERT INTO public.outbox_receipt (shard, number, epoch, log_end, from_position, to_position, created_at, lanes) VALUES (0, 1, 2, 0, NULL, NULL, '2026-11-30 15:40:22.785889+00', '\x0128b52ffd200a510000010466696c6500000000');
INSERT INTO public.outbox_receipt (shard, number, epoch, log_end, from_position, to_position, created_at, lanes) VALUES (1, 3, 2, 8, NULL, NULL, '2026-11-30 15:40:22.798101+00', '\x0128b52ffd200a510000010466696c6508080000');
INSERT INTO public.outbox_receipt (shard, number, epoch, log_end, from_position, to_position, created_at, lanes) VALUES (2, 3, 2, 16, NULL, NULL, '2026-11-30 15:40:22.798101+00', '\x0128b52ffd200a510000010466696c6510100000');
INSERT INTO public.outbox_receipt (shard, number, epoch, log_end, from_position, to_position, created_at, lanes) VALUES (3, 2, 2, 16, NULL, NULL, '2026-11-30 15:40:22.798101+00', '\x0128b52ffd200a510000010466696c6510100000');
INSERT INTO public.outbox_receipt (shard, number, epoch, log_end, from_position, to_position, created_at, lanes) VALUES (0, 2, 2, 2, NULL, NULL, '2026-11-30 15:40:22.861271+00', '\x0128b52ffd200a510000010466696c6502020000');
SELECT pg_catalog.setval('public.outbox_seq_seq', 48, true);
