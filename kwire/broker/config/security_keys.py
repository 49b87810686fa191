"""Keys of TLS, SASL, principals and delegation tokens.

Names, types, defaults and ranges are those of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from typing import Final

from kwire.broker.config.definition import (
    BOOLEAN,
    CLASS,
    DOUBLE,
    INT,
    LIST,
    LONG,
    PASSWORD,
    PER_BROKER,
    SHORT,
    STRING,
    Key,
    at_least,
    between,
    one_of,
    one_of_any_case,
)

PRINCIPAL_BUILDER: Final = "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"
SSL_ENGINE: Final = "org.apache.kafka.common.security.ssl.DefaultSslEngineFactory"

# fmt: off
SECURITY_KEYS: Final = (
    Key("authorizer.class.name", STRING, "",
        doc="The class of the authorizer. Empty means that every client has full access."),
    Key("sasl.mechanism.controller.protocol", STRING, "GSSAPI",
        doc="The SASL mechanism with which this node authenticates to controllers."),
    Key("security.inter.broker.protocol", STRING, "PLAINTEXT",
        one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        doc="The security protocol between brokers. It selects the listener of that name. It cannot be set "
            "together with inter.broker.listener.name."),
    Key("sasl.server.max.receive.size", INT, "524288",
        doc="The maximum size, in bytes, of a message from a client that has not authenticated yet."),
    Key("security.providers", STRING, None,
        doc="The classes that create additional security providers, separated by commas. Unset means no "
            "additional providers."),
    Key("principal.builder.class", CLASS, PRINCIPAL_BUILDER,
        update_mode=PER_BROKER, classes=(PRINCIPAL_BUILDER,),
        doc="The class that builds the principal of an authenticated client. ACLs and quotas refer to "
            "principals."),
    Key("ssl.client.auth", STRING, "none", one_of("required", "requested", "none"), update_mode=PER_BROKER,
        doc="Whether clients must present a certificate: required, requested (verified if presented) or "
            "none. The key can have a listener prefix."),
    Key("ssl.principal.mapping.rules", STRING, "DEFAULT",
        doc="The rules, separated by commas, that map a client certificate's distinguished name to a short "
            "name. The first matching rule applies. DEFAULT uses the complete distinguished name."),
    Key("ssl.allow.dn.changes", BOOLEAN, "false",
        doc="Whether an update of the key store on a running broker can change the certificate's "
            "distinguished name."),
    Key("ssl.allow.san.changes", BOOLEAN, "false",
        doc="Whether an update of the key store on a running broker can change the certificate's subject "
            "alternative names."),
    Key("ssl.protocol", STRING, "TLSv1.3", update_mode=PER_BROKER,
        doc="The TLS version of the SSL context. ssl.enabled.protocols lists the versions that connections "
            "can use."),
    Key("ssl.provider", STRING, None, update_mode=PER_BROKER,
        doc="The security provider for TLS. Unset means the default provider of the platform."),
    Key("ssl.enabled.protocols", LIST, "TLSv1.2,TLSv1.3", update_mode=PER_BROKER,
        doc="The TLS versions that connections can use, separated by commas. The latest version that both "
            "sides support is used."),
    Key("ssl.keystore.type", STRING, "JKS", update_mode=PER_BROKER,
        doc="The format of the key store, such as JKS, PKCS12 or PEM."),
    Key("ssl.keystore.location", STRING, None, update_mode=PER_BROKER,
        doc="The key store file, which contains this node's private key and certificate. Unset means no key "
            "store file."),
    Key("ssl.keystore.password", PASSWORD, None, update_mode=PER_BROKER,
        doc="The password of the key store file. Unset means no password. PEM key stores have no password."),
    Key("ssl.key.password", PASSWORD, None, update_mode=PER_BROKER,
        doc="The password of the private key in the key store file or in ssl.keystore.key. Unset means that "
            "the key is not encrypted."),
    Key("ssl.keystore.key", PASSWORD, None, update_mode=PER_BROKER,
        doc="This node's private key in PEM format (PKCS#8), instead of a key store file. It requires the "
            "key store type PEM."),
    Key("ssl.keystore.certificate.chain", PASSWORD, None, update_mode=PER_BROKER,
        doc="This node's certificate chain in PEM format, instead of a key store file. It requires the key "
            "store type PEM."),
    Key("ssl.truststore.type", STRING, "JKS", update_mode=PER_BROKER,
        doc="The format of the trust store, such as JKS, PKCS12 or PEM."),
    Key("ssl.truststore.location", STRING, None, update_mode=PER_BROKER,
        doc="The trust store file, which contains the certificates that this node trusts. Unset means "
            "ssl.truststore.certificates, or else the trusted certificates of the platform."),
    Key("ssl.truststore.password", PASSWORD, None, update_mode=PER_BROKER,
        doc="The password of the trust store file. Unset means that the integrity of the file is not "
            "verified."),
    Key("ssl.truststore.certificates", PASSWORD, None, update_mode=PER_BROKER,
        doc="The trusted certificates in PEM format, instead of a trust store file. It requires the trust "
            "store type PEM."),
    Key("ssl.keymanager.algorithm", STRING, "SunX509", update_mode=PER_BROKER,
        doc="The algorithm of the key manager, which selects the key and certificate of a connection."),
    Key("ssl.trustmanager.algorithm", STRING, "PKIX", update_mode=PER_BROKER,
        doc="The algorithm of the trust manager, which verifies the certificates of the other side."),
    Key("ssl.endpoint.identification.algorithm", STRING, "https", update_mode=PER_BROKER,
        doc="The algorithm that verifies the server's host name against its certificate. With https the "
            "host name is verified, with an empty value it is not."),
    Key("ssl.secure.random.implementation", STRING, None, update_mode=PER_BROKER,
        doc="The random number generator for TLS. Unset means the default of the platform."),
    Key("ssl.cipher.suites", LIST, "", update_mode=PER_BROKER,
        doc="The cipher suites that connections can use, separated by commas. Empty means the default "
            "cipher suites of the platform."),
    Key("ssl.engine.factory.class", CLASS, None, update_mode=PER_BROKER, classes=(SSL_ENGINE,),
        doc="The class that creates SSL engines. Unset means the built-in class, which uses the other ssl "
            "keys."),
    Key("sasl.mechanism.inter.broker.protocol", STRING, "GSSAPI", update_mode=PER_BROKER,
        doc="The SASL mechanism with which brokers authenticate to each other."),
    Key("sasl.enabled.mechanisms", LIST, "GSSAPI", update_mode=PER_BROKER,
        doc="The SASL mechanisms that clients can use, separated by commas. The key can have a listener "
            "prefix."),
    Key("sasl.server.callback.handler.class", CLASS, None,
        doc="The class that verifies the credentials of clients. It is set with a listener and mechanism "
            "prefix. Unset means the mechanism's built-in class."),
    Key("sasl.kerberos.principal.to.local.rules", LIST, "DEFAULT", update_mode=PER_BROKER,
        doc="The rules, separated by commas, that map a Kerberos principal to a short name. The first "
            "matching rule applies. DEFAULT uses the part before the first / or @."),
    Key("sasl.jaas.config", PASSWORD, None, update_mode=PER_BROKER,
        doc="The JAAS configuration: a login module and its options, as MODULE required OPTION=VALUE;. On "
            "brokers, it is set with a listener and mechanism prefix."),
    Key("sasl.client.callback.handler.class", CLASS, None,
        doc="The class that provides the credentials of this node when it connects as a client. Unset means "
            "the mechanism's built-in class."),
    Key("sasl.login.class", CLASS, None,
        doc="The class that logs this node in and refreshes the login. Unset means the mechanism's built-in "
            "class."),
    Key("sasl.login.callback.handler.class", CLASS, None,
        doc="The class that handles the callbacks of the login module. It is set with a listener and "
            "mechanism prefix. Unset means the mechanism's built-in class."),
    Key("sasl.kerberos.service.name", STRING, None, update_mode=PER_BROKER,
        doc="The service name in the Kerberos principals of the brokers. Unset means the service name in "
            "the JAAS configuration."),
    Key("sasl.kerberos.kinit.cmd", STRING, "/usr/bin/kinit", update_mode=PER_BROKER,
        doc="The path of the kinit command, which renews Kerberos tickets."),
    Key("sasl.kerberos.ticket.renew.window.factor", DOUBLE, "0.8", update_mode=PER_BROKER,
        doc="The share of a Kerberos ticket's lifetime after which the ticket is renewed."),
    Key("sasl.kerberos.ticket.renew.jitter", DOUBLE, "0.05", update_mode=PER_BROKER,
        doc="The share by which the renewal time of a Kerberos ticket varies randomly."),
    Key("sasl.kerberos.min.time.before.relogin", LONG, "60000", update_mode=PER_BROKER,
        doc="The minimum time, in milliseconds, between two Kerberos logins."),
    Key("sasl.login.refresh.window.factor", DOUBLE, "0.8", update_mode=PER_BROKER,
        doc="The share of a credential's lifetime, from 0.5 to 1, after which the credential is refreshed. "
            "It applies to OAUTHBEARER only."),
    Key("sasl.login.refresh.window.jitter", DOUBLE, "0.05", update_mode=PER_BROKER,
        doc="The maximum random share of a credential's lifetime, from 0 to 0.25, that is added to its "
            "refresh time. It applies to OAUTHBEARER only."),
    Key("sasl.login.refresh.min.period.seconds", SHORT, "60", update_mode=PER_BROKER,
        doc="The minimum time, in seconds from 0 to 900, before a credential is refreshed, unless it "
            "expires earlier. It applies to OAUTHBEARER only."),
    Key("sasl.login.refresh.buffer.seconds", SHORT, "300", update_mode=PER_BROKER,
        doc="The time, in seconds from 0 to 3600, before the expiry of a credential by which it must be "
            "refreshed. It applies to OAUTHBEARER only."),
    Key("sasl.login.connect.timeout.ms", INT, None,
        doc="The maximum time, in milliseconds, to establish a connection to the identity provider. Unset "
            "means no limit."),
    Key("sasl.login.read.timeout.ms", INT, None,
        doc="The maximum time, in milliseconds, to wait for a response of the identity provider. Unset "
            "means no limit."),
    Key("sasl.login.retry.backoff.max.ms", LONG, "10000",
        doc="The upper limit, in milliseconds, to which the time between login attempts at the identity "
            "provider grows."),
    Key("sasl.login.retry.backoff.ms", LONG, "100",
        doc="The time, in milliseconds, before the first retry of a login at the identity provider."),
    Key("sasl.oauthbearer.jwt.retriever.class", CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",
        doc="The class that retrieves this node's token from the identity provider."),
    Key("sasl.oauthbearer.jwt.validator.class", CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
        doc="The class that validates tokens."),
    Key("sasl.oauthbearer.scope", STRING, None,
        doc="The scope that this node requests from the identity provider. Unset means no scope."),
    Key("sasl.oauthbearer.client.credentials.client.id", STRING, None,
        doc="The client id with which this node requests a token from the identity provider. Unset means "
            "the client id in the JAAS configuration."),
    Key("sasl.oauthbearer.client.credentials.client.secret", PASSWORD, None,
        doc="The client secret with which this node requests a token from the identity provider. Unset "
            "means the client secret in the JAAS configuration."),
    Key("sasl.oauthbearer.assertion.algorithm", STRING, "RS256", one_of_any_case("ES256", "RS256"),
        doc="The signature algorithm of the assertions that this node sends to the identity provider: RS256 "
            "or ES256."),
    Key("sasl.oauthbearer.assertion.claim.aud", STRING, None,
        doc="The aud (audience) claim of this node's assertions. Unset means no such claim."),
    Key("sasl.oauthbearer.assertion.claim.exp.seconds", INT, "300", between(0, 86_400),
        doc="The time, in seconds, that this node's assertions are valid."),
    Key("sasl.oauthbearer.assertion.claim.iss", STRING, None,
        doc="The iss (issuer) claim of this node's assertions. Unset means no such claim."),
    Key("sasl.oauthbearer.assertion.claim.jti.include", BOOLEAN, "false",
        doc="Whether this node's assertions have a jti claim with a unique id."),
    Key("sasl.oauthbearer.assertion.claim.nbf.seconds", INT, "60", between(0, 3600),
        doc="The time, in seconds before its creation, from which an assertion is valid. It allows for "
            "clocks that differ."),
    Key("sasl.oauthbearer.assertion.claim.sub", STRING, None,
        doc="The sub (subject) claim of this node's assertions. Unset means no such claim."),
    Key("sasl.oauthbearer.assertion.file", STRING, None,
        doc="The file of a prepared assertion. Unset means that this node creates its assertions."),
    Key("sasl.oauthbearer.assertion.private.key.file", STRING, None,
        doc="The PEM file of the private key that signs this node's assertions. Unset means that this node "
            "creates no assertions."),
    Key("sasl.oauthbearer.assertion.private.key.passphrase", PASSWORD, None,
        doc="The passphrase of the private key that signs this node's assertions. Unset means that the key "
            "is not encrypted."),
    Key("sasl.oauthbearer.assertion.template.file", STRING, None,
        doc="The JSON file with the headers and claims of all assertions of this node. Unset means no such "
            "file."),
    Key("sasl.oauthbearer.scope.claim.name", STRING, "scope",
        doc="The name of the token claim that contains the scopes."),
    Key("sasl.oauthbearer.sub.claim.name", STRING, "sub",
        doc="The name of the token claim that contains the subject, which becomes the principal name."),
    Key("sasl.oauthbearer.token.endpoint.url", STRING, None,
        doc="The URL at which this node requests its token. A file: URL refers to a file that contains the "
            "token."),
    Key("sasl.oauthbearer.jwks.endpoint.url", STRING, None,
        doc="The URL of the public keys that verify token signatures. A file: URL refers to a file."),
    Key("sasl.oauthbearer.jwks.endpoint.refresh.ms", LONG, "3600000",
        doc="The time, in milliseconds, between two fetches of the public keys that verify token "
            "signatures."),
    Key("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", LONG, "100",
        doc="The time, in milliseconds, before the first retry of a failed fetch of the public keys."),
    Key("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", LONG, "10000",
        doc="The upper limit, in milliseconds, to which the time between fetches of the public keys grows "
            "after failures."),
    Key("sasl.oauthbearer.clock.skew.seconds", INT, "30",
        doc="The time, in seconds, by which the clocks of the identity provider and this node may differ "
            "when a token is validated."),
    Key("sasl.oauthbearer.expected.audience", LIST, "",
        doc="The accepted audiences of tokens, separated by commas. Empty means that the audience is not "
            "verified."),
    Key("sasl.oauthbearer.expected.issuer", STRING, None,
        doc="The accepted issuer of tokens. Unset means that the issuer is not verified."),
    Key("delegation.token.secret.key", PASSWORD, None,
        doc="The secret that signs delegation tokens. It must be the same on all brokers and controllers. "
            "Unset means that delegation tokens are disabled."),
    Key("delegation.token.max.lifetime.ms", LONG, "604800000", at_least(1),
        doc="The time, in milliseconds, after which a delegation token can no longer be renewed."),
    Key("delegation.token.expiry.time.ms", LONG, "86400000", at_least(1),
        doc="The time, in milliseconds, that a delegation token is valid unless it is renewed."),
    Key("delegation.token.expiry.check.interval.ms", LONG, "3600000", at_least(1),
        doc="The time, in milliseconds, between two checks of the controller for expired delegation tokens."),
)
# fmt: on
