"""Access control lists and delegation tokens. `kbatch.protocol.schema` explains the tables."""

ACLS_TABLES = """
DescribeAclsRequest: API key 29, versions 0-3, flexible 2+

field                 type    versions  null  default  meaning
resource_type_filter  int8    0+        -     -        Kind of the resource, a code of Kafka's ResourceType.
resource_name_filter  string  0+        0+    -        Name of the resource; null for any.
pattern_type_filter   int8    1+        -     3        How the name is compared, a code of Kafka's PatternType.
principal_filter      string  0+        0+    -        Principal that the rule has; null for any.
host_filter           string  0+        0+    -        Host that the rule has; null for any.
operation             int8    0+        -     -        Operation of the rule, a code of Kafka's AclOperation.
permission_type       int8    0+        -     -        Permission of the rule, a code of Kafka's AclPermissionType.

DescribeAclsResponse: API key 29, versions 0-3, flexible 2+

field                type                    versions  null  default  meaning
throttle_time_ms     int32                   0+        -     -        Time in ms that the broker delays the client
                                                                      because of a quota.
error_code           int16                   0+        -     -        Error of the whole request as a
                                                                      `kbatch.ErrorCode`; 0 if none.
error_message        string                  0+        0+    -        Text of the error; null if there is none.
resources            []DescribeAclsResource  0+        -     -        One entry per resource.
  resource_type      int8                    0+        -     -        Kind of the resource, a code of Kafka's
                                                                      ResourceType.
  resource_name      string                  0+        -     -        Name of the resource.
  pattern_type       int8                    1+        -     3        How the name is compared, a code of Kafka's
                                                                      PatternType.
  acls               []AclDescription        0+        -     -        Rules for this resource.
    principal        string                  0+        -     -        Principal of the rule, such as User:alice.
    host             string                  0+        -     -        Host from which the rule holds; * for any.
    operation        int8                    0+        -     -        Operation of the rule, a code of Kafka's
                                                                      AclOperation.
    permission_type  int8                    0+        -     -        Permission of the rule, a code of Kafka's
                                                                      AclPermissionType.

CreateAclsRequest: API key 30, versions 0-3, flexible 2+

field                    type           versions  default  meaning
creations                []AclCreation  0+        -        Rules to create.
  resource_type          int8           0+        -        Kind of the resource, a code of Kafka's ResourceType.
  resource_name          string         0+        -        Name of the resource.
  resource_pattern_type  int8           1+        3        How the name is compared, a code of Kafka's PatternType.
  principal              string         0+        -        Principal of the rule, such as User:alice.
  host                   string         0+        -        Host from which the rule holds; * for any.
  operation              int8           0+        -        Operation of the rule, a code of Kafka's AclOperation.
  permission_type        int8           0+        -        Permission of the rule, a code of Kafka's AclPermissionType.

CreateAclsResponse: API key 30, versions 0-3, flexible 2+

field             type                 versions  null  meaning
throttle_time_ms  int32                0+        -     Time in ms that the broker delays the client because of a quota.
results           []AclCreationResult  0+        -     One entry per rule.
  error_code      int16                0+        -     Error of this entry as a `kbatch.ErrorCode`; 0 if none.
  error_message   string               0+        0+    Text of the error; null if there is none.

DeleteAclsRequest: API key 31, versions 0-3, flexible 2+

field                   type                versions  null  default  meaning
filters                 []DeleteAclsFilter  0+        -     -        Filters of the rules to delete.
  resource_type_filter  int8                0+        -     -        Kind of the resource, a code of Kafka's
                                                                     ResourceType.
  resource_name_filter  string              0+        0+    -        Name of the resource; null for any.
  pattern_type_filter   int8                1+        -     3        How the name is compared, a code of Kafka's
                                                                     PatternType.
  principal_filter      string              0+        0+    -        Principal that the rule has; null for any.
  host_filter           string              0+        0+    -        Host that the rule has; null for any.
  operation             int8                0+        -     -        Operation of the rule, a code of Kafka's
                                                                     AclOperation.
  permission_type       int8                0+        -     -        Permission of the rule, a code of Kafka's
                                                                     AclPermissionType.

DeleteAclsResponse: API key 31, versions 0-3, flexible 2+

field                type    versions  null  default  meaning
throttle_time_ms     int32   0+        -     -        Time in ms that the broker delays the client because of a quota.
filter_results       []DeleteAclsFilterResult  0+  -  -  One entry per filter.
  error_code         int16   0+        -     -        Error of this entry as a `kbatch.ErrorCode`; 0 if none.
  error_message      string  0+        0+    -        Text of the error; null if there is none.
  matching_acls      []DeleteAclsMatchingAcl  0+  -  -  Rules that the filter matches.
    error_code       int16   0+        -     -        Error of this entry as a `kbatch.ErrorCode`; 0 if none.
    error_message    string  0+        0+    -        Text of the error; null if there is none.
    resource_type    int8    0+        -     -        Kind of the resource, a code of Kafka's ResourceType.
    resource_name    string  0+        -     -        Name of the resource.
    pattern_type     int8    1+        -     3        How the name is compared, a code of Kafka's PatternType.
    principal        string  0+        -     -        Principal of the rule, such as User:alice.
    host             string  0+        -     -        Host from which the rule holds; * for any.
    operation        int8    0+        -     -        Operation of the rule, a code of Kafka's AclOperation.
    permission_type  int8    0+        -     -        Permission of the rule, a code of Kafka's AclPermissionType.

CreateDelegationTokenRequest: API key 38, versions 0-3, flexible 2+

field                 type                 versions  null  meaning
owner_principal_type  string               3+        3+    Kind of the owner; null for the sender.
owner_principal_name  string               3+        3+    Name of the owner; null for the sender.
renewers              []CreatableRenewers  0+        -     Who may renew the token besides its owner.
  principal_type      string               0+        -     Kind of the principal, such as User.
  principal_name      string               0+        -     Name of the principal.
max_lifetime_ms       int64                0+        -     Longest time in ms that the token can live; -1 for the
                                                           broker's setting.

CreateDelegationTokenResponse: API key 38, versions 0-3, flexible 2+

field                type    versions  meaning
error_code           int16   0+        Error of the whole request as a `kbatch.ErrorCode`; 0 if none.
principal_type       string  0+        Kind of the owner, such as User.
principal_name       string  0+        Name of the owner.
token_requester_principal_type  string  3+  Kind of the principal that requested the token.
token_requester_principal_name  string  3+  Name of the principal that requested the token.
issue_timestamp_ms   int64   0+        Time in ms at which the token was made.
expiry_timestamp_ms  int64   0+        Time in ms at which the token expires unless it is renewed.
max_timestamp_ms     int64   0+        Time in ms after which the token cannot be renewed.
token_id             string  0+        Id of the token.
hmac                 bytes   0+        Secret of the token.
throttle_time_ms     int32   0+        Time in ms that the broker delays the client because of a quota.

RenewDelegationTokenRequest: API key 39, versions 0-2, flexible 2+

field            type   versions  meaning
hmac             bytes  0+        Secret of the token.
renew_period_ms  int64  0+        Time in ms by which to extend the life of the token; -1 for the broker's setting.

RenewDelegationTokenResponse: API key 39, versions 0-2, flexible 2+

field                type   versions  meaning
error_code           int16  0+        Error of the whole request as a `kbatch.ErrorCode`; 0 if none.
expiry_timestamp_ms  int64  0+        Time in ms at which the token expires unless it is renewed.
throttle_time_ms     int32  0+        Time in ms that the broker delays the client because of a quota.

ExpireDelegationTokenRequest: API key 40, versions 0-2, flexible 2+

field                  type   versions  meaning
hmac                   bytes  0+        Secret of the token.
expiry_time_period_ms  int64  0+        Time in ms until the token expires; negative to expire it now.

ExpireDelegationTokenResponse: API key 40, versions 0-2, flexible 2+

field                type   versions  meaning
error_code           int16  0+        Error of the whole request as a `kbatch.ErrorCode`; 0 if none.
expiry_timestamp_ms  int64  0+        Time in ms at which the token expires unless it is renewed.
throttle_time_ms     int32  0+        Time in ms that the broker delays the client because of a quota.

DescribeDelegationTokenRequest: API key 41, versions 0-3, flexible 2+

field             type    versions  null  meaning
owners            []DescribeDelegationTokenOwner  0+  0+  Owners whose tokens to describe; null for all.
  principal_type  string  0+        -     Kind of the principal, such as User.
  principal_name  string  0+        -     Name of the principal.

DescribeDelegationTokenResponse: API key 41, versions 0-3, flexible 2+

field               type    versions  meaning
error_code          int16   0+        Error of the whole request as a `kbatch.ErrorCode`; 0 if none.
tokens              []DescribedDelegationToken  0+  One entry per token.
  principal_type    string  0+        Kind of the owner, such as User.
  principal_name    string  0+        Name of the owner.
  token_requester_principal_type  string  3+  Kind of the principal that requested the token.
  token_requester_principal_name  string  3+  Name of the principal that requested the token.
  issue_timestamp   int64   0+        Time in ms at which the token was made.
  expiry_timestamp  int64   0+        Time in ms at which the token expires unless it is renewed.
  max_timestamp     int64   0+        Time in ms after which the token cannot be renewed.
  token_id          string  0+        Id of the token.
  hmac              bytes   0+        Secret of the token.
  renewers          []DescribedDelegationTokenRenewer  0+  Who may renew the token besides its owner.
    principal_type  string  0+        Kind of the principal, such as User.
    principal_name  string  0+        Name of the principal.
throttle_time_ms    int32   0+        Time in ms that the broker delays the client because of a quota.
"""
