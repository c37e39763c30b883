//! Request and response codes. Numbers that this crate does not know are kept, never refused.
//!
//! Source: `RequestCode`, `ResponseCode`, `RemotingSysResponseCode` of RocketMQ 4.9.4 and 5.3.3, which agree on every
//! number named here.

macro_rules! codes {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $number:literal, $java:literal;)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$doc])* $variant,)*
            /// A number without a name in this crate.
            Unknown(i32),
        }

        impl $name {
            /// Every code that has a name here.
            pub const NAMED: &[Self] = &[$(Self::$variant),*];

            /// The number on the wire.
            #[must_use]
            pub const fn number(self) -> i32 {
                match self {
                    $(Self::$variant => $number,)*
                    Self::Unknown(number) => number,
                }
            }

            /// The code with this number; [`Self::Unknown`] if it has no name here.
            #[must_use]
            pub const fn from_number(number: i32) -> Self {
                match number {
                    $($number => Self::$variant,)*
                    other => Self::Unknown(other),
                }
            }

            /// The name that RocketMQ's own sources and tools use; `UNKNOWN` if it has none here.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $java,)*
                    Self::Unknown(_) => "UNKNOWN",
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{} ({})", self.name(), self.number())
            }
        }

        impl From<i32> for $name {
            fn from(number: i32) -> Self {
                Self::from_number(number)
            }
        }
    };
}

codes! {
    /// What a request asks for.
    RequestCode {
        /// A single message, with long field names; this crate sends [`Self::SendMessageV2`] instead.
        SendMessage = 10, "SEND_MESSAGE";
        /// Read messages of one queue.
        PullMessage = 11, "PULL_MESSAGE";
        /// Search messages by key.
        QueryMessage = 12, "QUERY_MESSAGE";
        /// Where a consumer group stands in a queue.
        QueryConsumerOffset = 14, "QUERY_CONSUMER_OFFSET";
        /// Move a consumer group in a queue.
        UpdateConsumerOffset = 15, "UPDATE_CONSUMER_OFFSET";
        /// Create a topic on a broker, or change it.
        UpdateAndCreateTopic = 17, "UPDATE_AND_CREATE_TOPIC";
        /// Change settings of a running broker.
        UpdateBrokerConfig = 25, "UPDATE_BROKER_CONFIG";
        /// Settings of a broker.
        GetBrokerConfig = 26, "GET_BROKER_CONFIG";
        /// Counters and positions of a broker.
        GetBrokerRuntimeInfo = 28, "GET_BROKER_RUNTIME_INFO";
        /// The offset of the first message stored at or after a time.
        SearchOffsetByTimestamp = 29, "SEARCH_OFFSET_BY_TIMESTAMP";
        /// The offset that the next message of a queue will have.
        GetMaxOffset = 30, "GET_MAX_OFFSET";
        /// The offset of the oldest message that a queue still has.
        GetMinOffset = 31, "GET_MIN_OFFSET";
        /// One message by its commit-log offset.
        ViewMessageById = 33, "VIEW_MESSAGE_BY_ID";
        /// A client tells a broker its groups.
        HeartBeat = 34, "HEART_BEAT";
        /// A client leaves its groups.
        UnregisterClient = 35, "UNREGISTER_CLIENT";
        /// A consumer gives a message back for another try.
        ConsumerSendMsgBack = 36, "CONSUMER_SEND_MSG_BACK";
        /// Commit or roll back a half message.
        EndTransaction = 37, "END_TRANSACTION";
        /// Members of a consumer group.
        GetConsumerListByGroup = 38, "GET_CONSUMER_LIST_BY_GROUP";
        /// Broker to client: what became of a half message?
        CheckTransactionState = 39, "CHECK_TRANSACTION_STATE";
        /// Broker to client: members of a consumer group changed.
        NotifyConsumerIdsChanged = 40, "NOTIFY_CONSUMER_IDS_CHANGED";
        /// Lock queues for ordered consumption.
        LockBatchMq = 41, "LOCK_BATCH_MQ";
        /// Unlock them.
        UnlockBatchMq = 42, "UNLOCK_BATCH_MQ";
        /// ACL accounts of 4.9.
        UpdateAndCreateAclConfig = 50, "UPDATE_AND_CREATE_ACL_CONFIG";
        /// Name server: brokers and queues of a topic.
        GetRouteInfoByTopic = 105, "GET_ROUTEINFO_BY_TOPIC";
        /// Name server: clusters and their brokers.
        GetBrokerClusterInfo = 106, "GET_BROKER_CLUSTER_INFO";
        /// Create a consumer group on a broker, or change it.
        UpdateAndCreateSubscriptionGroup = 200, "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP";
        /// Connections of a producer group.
        GetProducerConnectionList = 204, "GET_PRODUCER_CONNECTION_LIST";
        /// Name server: names of all topics.
        GetAllTopicListFromNameServer = 206, "GET_ALL_TOPIC_LIST_FROM_NAMESERVER";
        /// Delete a topic on a broker.
        DeleteTopicInBroker = 215, "DELETE_TOPIC_IN_BROKER";
        /// Delete a topic's route on a name server.
        DeleteTopicInNameServer = 216, "DELETE_TOPIC_IN_NAMESRV";
        /// Broker to client: take other offsets.
        ResetConsumerClientOffset = 220, "RESET_CONSUMER_CLIENT_OFFSET";
        /// Broker to client: describe yourself.
        GetConsumerRunningInfo = 307, "GET_CONSUMER_RUNNING_INFO";
        /// Broker to client: consume this message now.
        ConsumeMessageDirectly = 309, "CONSUME_MESSAGE_DIRECTLY";
        /// A single message, with one-letter field names.
        SendMessageV2 = 310, "SEND_MESSAGE_V2";
        /// Messages of one topic and queue that are stored together or not at all.
        SendBatchMessage = 320, "SEND_BATCH_MESSAGE";
        /// Check a half message again that was given up.
        ResumeCheckHalfMessage = 323, "RESUME_CHECK_HALF_MESSAGE";
        /// Broker to client: the reply to a request message.
        PushReplyMessageToClient = 326, "PUSH_REPLY_MESSAGE_TO_CLIENT";
        /// Settings of a topic on a broker; 5.x.
        GetTopicConfig = 351, "GET_TOPIC_CONFIG";
    }
}

codes! {
    /// What an answer says.
    ResponseCode {
        /// Done.
        Success = 0, "SUCCESS";
        /// The broker failed, or refused for a reason that only the remark tells (4.9: also access control).
        SystemError = 1, "SYSTEM_ERROR";
        /// Flow control: refused before anything was stored.
        SystemBusy = 2, "SYSTEM_BUSY";
        /// The peer does not know the request.
        RequestCodeNotSupported = 3, "REQUEST_CODE_NOT_SUPPORTED";
        /// A transaction failed.
        TransactionFailed = 4, "TRANSACTION_FAILED";
        /// Stored; the flush to disk did not end in time.
        FlushDiskTimeout = 10, "FLUSH_DISK_TIMEOUT";
        /// Stored; no replica is there to take it. To END_TRANSACTION: this broker is a slave, nothing was done.
        SlaveNotAvailable = 11, "SLAVE_NOT_AVAILABLE";
        /// Stored; the replica's acknowledgement did not come in time.
        FlushSlaveTimeout = 12, "FLUSH_SLAVE_TIMEOUT";
        /// The message breaks a rule.
        MessageIllegal = 13, "MESSAGE_ILLEGAL";
        /// The broker takes no writes now (it shuts down, is a slave, or its disk is full).
        ServiceNotAvailable = 14, "SERVICE_NOT_AVAILABLE";
        /// Not in this version.
        VersionNotSupported = 15, "VERSION_NOT_SUPPORTED";
        /// Forbidden by a permission of topic, broker or account.
        NoPermission = 16, "NO_PERMISSION";
        /// No such topic; from a name server also: every broker of this topic is down.
        TopicNotExist = 17, "TOPIC_NOT_EXIST";
        /// The topic is there already.
        TopicExistAlready = 18, "TOPIC_EXIST_ALREADY";
        /// No new message.
        PullNotFound = 19, "PULL_NOT_FOUND";
        /// Pull again at once.
        PullRetryImmediately = 20, "PULL_RETRY_IMMEDIATELY";
        /// The offset is outside of the queue; the answer names a better one.
        PullOffsetMoved = 21, "PULL_OFFSET_MOVED";
        /// Nothing found.
        QueryNotFound = 22, "QUERY_NOT_FOUND";
        /// The subscription expression cannot be read.
        SubscriptionParseFailed = 23, "SUBSCRIPTION_PARSE_FAILED";
        /// The broker knows no subscription of this group.
        SubscriptionNotExist = 24, "SUBSCRIPTION_NOT_EXIST";
        /// The broker knows an older subscription.
        SubscriptionNotLatest = 25, "SUBSCRIPTION_NOT_LATEST";
        /// No such consumer group.
        SubscriptionGroupNotExist = 26, "SUBSCRIPTION_GROUP_NOT_EXIST";
        /// A field has a value that is not allowed; 5.x.
        InvalidParameter = 29, "INVALID_PARAMETER";
        /// The producer group is not the one of the half message.
        TransactionStateGroupWrong = 203, "TRANSACTION_STATE_GROUP_WRONG";
        /// A buyer id is missing (an old name that Java still retries).
        NoBuyerId = 204, "NO_BUYER_ID";
        /// Another unit's request.
        NotInCurrentUnit = 205, "NOT_IN_CURRENT_UNIT";
        /// The consumer is not connected.
        ConsumerNotOnline = 206, "CONSUMER_NOT_ONLINE";
        /// Flow control by quota; 5.x. Nothing was stored.
        FlowControl = 215, "FLOW_CONTROL";
        /// Another broker leads this queue; 5.x.
        NotLeaderForQueue = 501, "NOT_LEADER_FOR_QUEUE";
        /// Too late for a commit or rollback that is no answer to a check; 5.1.1 and later.
        IllegalOperation = 604, "ILLEGAL_OPERATION";
        /// The peer closes down: connect again and send again; 5.x.
        GoAway = 1500, "GO_AWAY";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_codes_are_the_numbers_of_the_java_sources() {
        for &code in RequestCode::NAMED {
            assert_eq!(RequestCode::from_number(code.number()), code);
        }
        for &code in ResponseCode::NAMED {
            assert_eq!(ResponseCode::from_number(code.number()), code);
        }
        assert_eq!(RequestCode::SendMessageV2.number(), 310);
        assert_eq!(ResponseCode::from_number(604), ResponseCode::IllegalOperation);
    }

    #[test]
    fn unknown_codes_keep_their_number() {
        let code = RequestCode::from_number(200_050);
        assert_eq!(code, RequestCode::Unknown(200_050));
        assert_eq!(code.number(), 200_050);
        assert_eq!(ResponseCode::from_number(-1).to_string(), "UNKNOWN (-1)");
        assert_eq!(ResponseCode::SystemBusy.to_string(), "SYSTEM_BUSY (2)");
    }
}
