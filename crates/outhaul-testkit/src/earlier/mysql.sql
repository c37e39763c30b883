-- What `outhaul` of commit 551c3e1 made and wrote in mysql: see earlier.rs.
SET time_zone = '+00:00';
CREATE TABLE IF NOT EXISTS `outbox` (
  `seq` BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  `id` VARBINARY(64) NOT NULL DEFAULT (UUID()),
  `topic` VARCHAR(255) NOT NULL,
  `msg_key` VARBINARY(255) NULL,
  `headers` JSON NULL,
  `payload` LONGBLOB NOT NULL,
  `created_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  `available_at` TIMESTAMP(6) NULL DEFAULT NULL,
  `shard` SMALLINT UNSIGNED NOT NULL DEFAULT (CRC32(COALESCE(`msg_key`, `id`)) % 4),
  PRIMARY KEY (`shard`, `seq`),
  KEY `seq` (`seq`),
  CHECK (`shard` < 4)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
CREATE TABLE IF NOT EXISTS `outbox_log` (
  `shard` SMALLINT UNSIGNED NOT NULL,
  `base_position` BIGINT UNSIGNED NOT NULL,
  `count` INT UNSIGNED NOT NULL,
  `first_created_at` DATETIME(6) NOT NULL,
  `last_created_at` DATETIME(6) NOT NULL,
  `moved_at` DATETIME(6) NOT NULL,
  `codec` TINYINT UNSIGNED NOT NULL,
  `id_filter` LONGBLOB NOT NULL,
  `chunk` LONGBLOB NOT NULL,
  PRIMARY KEY (shard, base_position)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
CREATE TABLE IF NOT EXISTS `outbox_receipt` (
  `shard` SMALLINT UNSIGNED NOT NULL,
  `number` BIGINT UNSIGNED NOT NULL,
  `epoch` BIGINT UNSIGNED NOT NULL,
  `log_end` BIGINT UNSIGNED NOT NULL,
  `from_position` BIGINT UNSIGNED NULL,
  `to_position` BIGINT UNSIGNED NULL,
  `created_at` DATETIME(6) NOT NULL,
  `lanes` LONGBLOB NOT NULL,
  PRIMARY KEY (shard, `number`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
CREATE TABLE IF NOT EXISTS `outbox_parked` (
  `destination` VARBINARY(255) NOT NULL,
  `shard` SMALLINT UNSIGNED NOT NULL,
  `position` BIGINT UNSIGNED NOT NULL,
  `id` BLOB NOT NULL,
  `msg_key` BLOB NULL,
  `state` VARCHAR(16) NOT NULL,
  `attempts` INT UNSIGNED NOT NULL,
  `due_at` BIGINT NOT NULL,
  `error_code` VARCHAR(64) NOT NULL,
  `error_text` MEDIUMTEXT NOT NULL,
  `first_failed_at` BIGINT NOT NULL,
  `last_failed_at` BIGINT NOT NULL,
  `codec` TINYINT UNSIGNED NOT NULL,
  `message` LONGBLOB NOT NULL,
  `oversize_payload` LONGBLOB NULL,
  PRIMARY KEY (destination, shard, `position`),
  KEY by_position (shard, `position`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
CREATE TABLE IF NOT EXISTS `outbox_lease` (
  `shard` SMALLINT NOT NULL,
  `owner` VARBINARY(255) NULL,
  `epoch` BIGINT UNSIGNED NOT NULL,
  `expires_at` DATETIME(6) NULL,
  PRIMARY KEY (shard)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
CREATE TABLE IF NOT EXISTS `outbox_instance` (
  `owner` VARBINARY(255) NOT NULL,
  `version` VARCHAR(64) NOT NULL,
  `draining` BOOLEAN NOT NULL,
  `heartbeat` DATETIME(6) NOT NULL,
  `troubles` MEDIUMTEXT NULL,
  PRIMARY KEY (owner)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
CREATE TABLE IF NOT EXISTS `outbox_meta` (
  `name` VARCHAR(300) NOT NULL,
  `value` MEDIUMTEXT NOT NULL,
  PRIMARY KEY (name)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
INSERT INTO `outbox` (`seq`, `id`, `topic`, `msg_key`, `headers`, `payload`, `created_at`, `available_at`, `shard`) VALUES (43, 0x686F7430, 't', 0x6B31, NULL, 0x30, '2026-11-30 15:40:17.343997', NULL, 1);
INSERT INTO `outbox` (`seq`, `id`, `topic`, `msg_key`, `headers`, `payload`, `created_at`, `available_at`, `shard`) VALUES (44, 0x686F7431, 't', 0x6B31, NULL, 0x31, '2026-11-30 15:40:17.352715', NULL, 1);
INSERT INTO `outbox` (`seq`, `id`, `topic`, `msg_key`, `headers`, `payload`, `created_at`, `available_at`, `shard`) VALUES (45, 0x686F7432, 't', 0x6B31, NULL, 0x32, '2026-11-30 15:40:17.352715', NULL, 1);
INSERT INTO `outbox` (`seq`, `id`, `topic`, `msg_key`, `headers`, `payload`, `created_at`, `available_at`, `shard`) VALUES (46, 0x686F7433, 't', 0x6B31, NULL, 0x33, '2026-11-30 15:40:17.352715', NULL, 1);
INSERT INTO `outbox` (`seq`, `id`, `topic`, `msg_key`, `headers`, `payload`, `created_at`, `available_at`, `shard`) VALUES (47, 0x686F7434, 't', 0x6B31, NULL, 0x34, '2026-11-30 15:40:17.352715', NULL, 1);
INSERT INTO `outbox` (`seq`, `id`, `topic`, `msg_key`, `headers`, `payload`, `created_at`, `available_at`, `shard`) VALUES (48, 0x6C61746572, 't', NULL, NULL, 0x31, '2026-11-30 15:40:17.352715', '2037-12-31 00:00:00.000000', 1);
INSERT INTO `outbox_log` (`shard`, `base_position`, `count`, `first_created_at`, `last_created_at`, `moved_at`, `codec`, `id_filter`, `chunk`) VALUES (1, 0, 16, '2026-11-30 15:40:16.212883', '2026-11-30 15:40:16.212883', '2026-11-30 15:40:16.521135', 1, 0x654DB0348101524656CE19B0294CD1F56B094D63D0759AD7, 0x28B52FFD602600250400B205131AB0271D4852485C12D8724F482288498A9D8F34B34037975BCA14E7FFFFDFB66DFB18F3568FD0DAEA1196F373453335572CBF410EFA15AD44126B90837A55128BC2C1A040588030101801021B00C004DC03C6C01560072E0326E01E3006AE003B70193001F7C07809D780317005D83D7A87119B13610BF405AB805C100573CD32);
INSERT INTO `outbox_log` (`shard`, `base_position`, `count`, `first_created_at`, `last_created_at`, `moved_at`, `codec`, `id_filter`, `chunk`) VALUES (2, 0, 8, '2026-11-30 15:40:16.212883', '2026-11-30 15:40:16.212883', '2026-11-30 15:40:16.554315', 1, 0xA8A2A2AAAA2A0088AA2228A0, 0x28B52FFD209A9D0200640308010466696C650AA6DE999F87E0B006026D340174036B340001000001340A00026D39390A00036D31023134393232323233333333390C00C004DC03C6C01560072E0326475D00766BDE41D42E9B6D3E01);
INSERT INTO `outbox_log` (`shard`, `base_position`, `count`, `first_created_at`, `last_created_at`, `moved_at`, `codec`, `id_filter`, `chunk`) VALUES (3, 0, 16, '2026-11-30 15:40:16.202976', '2026-11-30 15:40:16.212883', '2026-11-30 15:40:16.554315', 1, 0x3AC7201D8F8A31EE2770D83068DFB010D36249C4AD82AF36, 0x28B52FFD6028003D0400B245141DB0271D479880024D642E80BC08B94800C362DB202598056A1729A59401E6FFFFDFB66DDB946235DD234C35DD2362CC1A61296B44EC734779AD0E0DCC222ACA7347E51A49300A08C3426101C2408005081900C004DC03C6C01560072E0326E01E3006AE003B70193001F7C07809D780317005D83DEA0ED8DC08BB0CB54B515B54ED2C03);
INSERT INTO `outbox_log` (`shard`, `base_position`, `count`, `first_created_at`, `last_created_at`, `moved_at`, `codec`, `id_filter`, `chunk`) VALUES (3, 16, 2, '2026-11-30 15:40:16.889493', '2026-11-30 15:40:16.889493', '2026-11-30 15:40:17.179834', 1, 0x1060000E2800C592, 0x28B52FFD205081020002010466696C6552AAAAEC9F87E0B006036261640174036B70045B315D0100030D6E6F7420616E206F626A656374077B226E223A317D020006626568696E640174036B7000010000077B226E223A327D);
INSERT INTO `outbox_receipt` (`shard`, `number`, `epoch`, `log_end`, `from_position`, `to_position`, `created_at`, `lanes`) VALUES (0, 0, 1, 0, NULL, NULL, '2026-11-30 15:40:16.521589', 0x0128B52FFD200A510000010466696C6500000000);
INSERT INTO `outbox_receipt` (`shard`, `number`, `epoch`, `log_end`, `from_position`, `to_position`, `created_at`, `lanes`) VALUES (0, 1, 2, 0, NULL, NULL, '2026-11-30 15:40:17.141495', 0x0128B52FFD200A510000010466696C6500000000);
INSERT INTO `outbox_receipt` (`shard`, `number`, `epoch`, `log_end`, `from_position`, `to_position`, `created_at`, `lanes`) VALUES (1, 0, 1, 0, NULL, NULL, '2026-11-30 15:40:16.496046', 0x0128B52FFD200A510000010466696C6500000000);
INSERT INTO `outbox_receipt` (`shard`, `number`, `epoch`, `log_end`, `from_position`, `to_position`, `created_at`, `lanes`) VALUES (1, 1, 1, 16, NULL, NULL, '2026-11-30 15:40:16.521589', 0x0128B52FFD200A510000010466696C6500000000);
INSERT INTO `outbox_receipt` (`shard`, `number`, `epoch`, `log_end`, `from_position`, `to_position`, `created_at`, `lanes`) VALUES (1, 2, 1, 16, 0, 15, '2026-11-30 15:40:16.556635', 0x0128B52FFD20974D0300B284111BB0351D8043BA9A9C4DD7F48ED5B0127B4B29F796328B02E1E6D30EFBB52BF550FED26DF1967EFBDD943A5D449A2ED5224C547C601B9F6D21011C88B204CC31E70C464198030E004220028C01C66019EDD491A61AE14AC85087411B4006B801DA0032DE559C);
INSERT INTO `outbox_receipt` (`shard`, `number`, `epoch`, `log_end`, `from_position`, `to_position`, `created_at`, `lanes`) VALUES (1, 3, 2, 16, NULL, NULL, '2026-11-30 15:40:17.154387', 0x0128B52FFD200A510000010466696C6510100000);
INSERT INTO `outbox_receipt` (`shard`, `number`, `epoch`, `log_end`, `from_position`, `to_position`, `created_at`, `lanes`) VALUES (2, 0, 1, 0, NULL, NULL, '2026-11-30 15:40:16.521589', 0x0128B52FFD200A510000010466696C6500000000);
INSERT INTO `outbox_receipt` (`shard`, `number`, `epoch`, `log_end`, `from_position`, `to_position`, `created_at`, `lanes`) VALUES (2, 1, 1, 8, NULL, NULL, '2026-11-30 15:40:16.556635', 0x0128B52FFD200A510000010466696C6500000000);
INSERT INTO `outbox_receipt` (`shard`, `number`, `epoch`, `log_end`, `from_position`, `to_position`, `created_at`, `lanes`) VALUES (2, 2, 1, 8, 0, 7, '2026-11-30 15:40:16.580609', 0x0128B52FFD2059450200B403010466696C650808000800F6A9C29F87E0B006010104323034360100010104323137323239383432363535343638323831300100010104323933380504036080010618637902);
INSERT INTO `outbox_receipt` (`shard`, `number`, `epoch`, `log_end`, `from_position`, `to_position`, `created_at`, `lanes`) VALUES (2, 3, 2, 8, NULL, NULL, '2026-11-30 15:40:17.154387', 0x0128B52FFD200A510000010466696C6508080000);
INSERT INTO `outbox_receipt` (`shard`, `number`, `epoch`, `log_end`, `from_position`, `to_position`, `created_at`, `lanes`) VALUES (3, 0, 1, 0, NULL, NULL, '2026-11-30 15:40:16.521589', 0x0128B52FFD200A510000010466696C6500000000);
INSERT INTO `outbox_receipt` (`shard`, `number`, `epoch`, `log_end`, `from_position`, `to_position`, `created_at`, `lanes`) VALUES (3, 1, 1, 16, NULL, NULL, '2026-11-30 15:40:16.556635', 0x0128B52FFD200A510000010466696C6500000000);
INSERT INTO `outbox_receipt` (`shard`, `number`, `epoch`, `log_end`, `from_position`, `to_position`, `created_at`, `lanes`) VALUES (3, 2, 1, 16, 0, 15, '2026-11-30 15:40:16.597064', 0x0128B52FFD20A12D0300C2041119C0A703FF3CF41507EA5791F1FF0299B69452CA56A56C9F9032F9FE62E2DEC4FACC43883FD56DC6BFF9D2AAEA5162A3346665CC97C60C489602518CA34E9D131083602C0E004220028C01C600638031C0186008B8038C01C600638031C018E3509E);
INSERT INTO `outbox_receipt` (`shard`, `number`, `epoch`, `log_end`, `from_position`, `to_position`, `created_at`, `lanes`) VALUES (3, 3, 2, 16, NULL, NULL, '2026-11-30 15:40:17.154387', 0x0128B52FFD200A510000010466696C6510100000);
INSERT INTO `outbox_receipt` (`shard`, `number`, `epoch`, `log_end`, `from_position`, `to_position`, `created_at`, `lanes`) VALUES (3, 4, 2, 18, NULL, NULL, '2026-11-30 15:40:17.180638', 0x0128B52FFD200A510000010466696C6512120000);
INSERT INTO `outbox_parked` (`destination`, `shard`, `position`, `id`, `msg_key`, `state`, `attempts`, `due_at`, `error_code`, `error_text`, `first_failed_at`, `last_failed_at`, `codec`, `message`, `oversize_payload`) VALUES (0x66696C65, 3, 16, 0x626164, 0x6B70, 'dead', 0, 0, 'OUT-4002', 'the headers cannot be used: not an object', 1796053217163974, 1796053217163974, 1, 0x28B52FFD2036B1010001010466696C6552AAAAEC9F87E0B006036261640174036B70045B315D0100030D6E6F7420616E206F626A656374077B226E223A317D, NULL);
INSERT INTO `outbox_parked` (`destination`, `shard`, `position`, `id`, `msg_key`, `state`, `attempts`, `due_at`, `error_code`, `error_text`, `first_failed_at`, `last_failed_at`, `codec`, `message`, `oversize_payload`) VALUES (0x66696C65, 3, 17, 0x626568696E64, 0x6B70, 'waiting', 0, 0, 'OUT-4009', 'waits behind a parked message of its key', 1796053217163974, 1796053217163974, 1, 0x28B52FFD202841010001010466696C6554AAAAEC9F87E0B00606626568696E640174036B7000010000077B226E223A327D, NULL);
INSERT INTO `outbox_lease` (`shard`, `owner`, `epoch`, `expires_at`) VALUES (-1, NULL, 0, NULL);
INSERT INTO `outbox_lease` (`shard`, `owner`, `epoch`, `expires_at`) VALUES (0, NULL, 2, NULL);
INSERT INTO `outbox_lease` (`shard`, `owner`, `epoch`, `expires_at`) VALUES (1, NULL, 2, NULL);
INSERT INTO `outbox_lease` (`shard`, `owner`, `epoch`, `expires_at`) VALUES (2, NULL, 2, NULL);
INSERT INTO `outbox_lease` (`shard`, `owner`, `epoch`, `expires_at`) VALUES (3, NULL, 2, NULL);
INSERT INTO `outbox_meta` (`name`, `value`) VALUES ('mode', 'move');
INSERT INTO `outbox_meta` (`name`, `value`) VALUES ('schema_version', '1');
INSERT INTO `outbox_meta` (`name`, `value`) VALUES ('shard_by', 'key');
INSERT INTO `outbox_meta` (`name`, `value`) VALUES ('shards', '4');
