"""TLS, SASL, principals and delegation tokens.

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
        doc="The class that decides who may do what. Empty means everyone may do everything."),
    Key("sasl.mechanism.controller.protocol", STRING, "GSSAPI",
        doc="The SASL mechanism with which this node authenticates to controllers."),
    Key("security.inter.broker.protocol", STRING, "PLAINTEXT",
        one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        doc="The security protocol between brokers, which selects the listener of that name. Cannot be set "
            "together with inter.broker.listener.name."),
    Key("sasl.server.max.receive.size", INT, "524288",
        doc="The largest message, in bytes, accepted from a client that has not authenticated yet."),
    Key("security.providers", STRING, None,
        doc="Classes that supply security providers, separated by commas. Unset means none are added."),
    Key("principal.builder.class", CLASS, PRINCIPAL_BUILDER,
        update_mode=PER_BROKER, classes=(PRINCIPAL_BUILDER,),
        doc="The class that turns what a client authenticated with into the principal that ACLs and quotas "
            "name."),
    Key("ssl.client.auth", STRING, "none", one_of("required", "requested", "none"), update_mode=PER_BROKER,
        doc="Whether clients have to show a certificate: required, requested (one is checked if shown) or "
            "none. Can be set for one listener by prefix."),
    Key("ssl.principal.mapping.rules", STRING, "DEFAULT",
        doc="Rules, separated by commas, that make a short name of a client certificate's subject; the "
            "first that matches is used. DEFAULT takes the whole subject."),
    Key("ssl.allow.dn.changes", BOOLEAN, "false",
        doc="Whether a key store replaced on the running broker may have a certificate with another "
            "subject."),
    Key("ssl.allow.san.changes", BOOLEAN, "false",
        doc="Whether a key store replaced on the running broker may have a certificate with other "
            "alternative names."),
    Key("ssl.protocol", STRING, "TLSv1.3", update_mode=PER_BROKER,
        doc="The TLS version connections are set up for. Which older ones are still accepted is up to "
            "ssl.enabled.protocols."),
    Key("ssl.provider", STRING, None, update_mode=PER_BROKER,
        doc="The security provider that does TLS. Unset means the platform's own."),
    Key("ssl.enabled.protocols", LIST, "TLSv1.2,TLSv1.3", update_mode=PER_BROKER,
        doc="The TLS versions a connection may use, separated by commas. The newest that both ends allow is "
            "used."),
    Key("ssl.keystore.type", STRING, "JKS", update_mode=PER_BROKER,
        doc="The format of the key store, such as JKS, PKCS12 or PEM."),
    Key("ssl.keystore.location", STRING, None, update_mode=PER_BROKER,
        doc="The file with this node's private key and certificate. Unset means there is no such file."),
    Key("ssl.keystore.password", PASSWORD, None, update_mode=PER_BROKER,
        doc="The password of the key store file. Unset means it has none; PEM key stores never have one."),
    Key("ssl.key.password", PASSWORD, None, update_mode=PER_BROKER,
        doc="The password of the private key, in the key store file or in ssl.keystore.key. Unset means the "
            "key is not encrypted."),
    Key("ssl.keystore.key", PASSWORD, None, update_mode=PER_BROKER,
        doc="This node's private key itself, as PEM in PKCS#8, instead of in a file. Used with the key "
            "store type PEM only."),
    Key("ssl.keystore.certificate.chain", PASSWORD, None, update_mode=PER_BROKER,
        doc="This node's certificate and those that vouch for it, as PEM, instead of in a file. Used with "
            "the key store type PEM only."),
    Key("ssl.truststore.type", STRING, "JKS", update_mode=PER_BROKER,
        doc="The format of the trust store, such as JKS, PKCS12 or PEM."),
    Key("ssl.truststore.location", STRING, None, update_mode=PER_BROKER,
        doc="The file with the certificates this node trusts. Unset means the platform's trusted "
            "certificates, unless ssl.truststore.certificates is set."),
    Key("ssl.truststore.password", PASSWORD, None, update_mode=PER_BROKER,
        doc="The password of the trust store file. Unset means it is read without checking that it is "
            "intact."),
    Key("ssl.truststore.certificates", PASSWORD, None, update_mode=PER_BROKER,
        doc="The certificates this node trusts themselves, as PEM, instead of in a file. Used with the "
            "trust store type PEM only."),
    Key("ssl.keymanager.algorithm", STRING, "SunX509", update_mode=PER_BROKER,
        doc="The algorithm that chooses which of this node's keys and certificates a connection uses."),
    Key("ssl.trustmanager.algorithm", STRING, "PKIX", update_mode=PER_BROKER,
        doc="The algorithm that checks the certificates the other end shows."),
    Key("ssl.endpoint.identification.algorithm", STRING, "https", update_mode=PER_BROKER,
        doc="How a server's certificate is compared with the host name it was reached by: https compares "
            "them, empty does not."),
    Key("ssl.secure.random.implementation", STRING, None, update_mode=PER_BROKER,
        doc="The random number generator TLS uses. Unset means the platform's choice."),
    Key("ssl.cipher.suites", LIST, "", update_mode=PER_BROKER,
        doc="The cipher suites a connection may use, separated by commas. Empty means every suite the "
            "platform has on by default."),
    Key("ssl.engine.factory.class", CLASS, None, update_mode=PER_BROKER, classes=(SSL_ENGINE,),
        doc="The class that sets up TLS in place of the built-in one. Unset means the built-in one does, "
            "from the other ssl settings."),
    Key("sasl.mechanism.inter.broker.protocol", STRING, "GSSAPI", update_mode=PER_BROKER,
        doc="The SASL mechanism with which brokers authenticate to each other."),
    Key("sasl.enabled.mechanisms", LIST, "GSSAPI", update_mode=PER_BROKER,
        doc="The SASL mechanisms clients may authenticate with, separated by commas. Can be set for one "
            "listener by prefix."),
    Key("sasl.server.callback.handler.class", CLASS, None,
        doc="The class that checks clients' credentials, set by the prefix of a listener and a mechanism. "
            "Unset means the mechanism's built-in one."),
    Key("sasl.kerberos.principal.to.local.rules", LIST, "DEFAULT", update_mode=PER_BROKER,
        doc="Rules, separated by commas, that make a short name of a Kerberos principal; the first that "
            "matches is used. DEFAULT takes what comes before the first / or @."),
    Key("sasl.jaas.config", PASSWORD, None, update_mode=PER_BROKER,
        doc="The login module and its options as JAAS text: MODULE required OPTION=VALUE;. A broker sets it "
            "by the prefix of a listener and a mechanism."),
    Key("sasl.client.callback.handler.class", CLASS, None,
        doc="The class that supplies credentials when this node is itself the client. Unset means the "
            "mechanism's built-in one."),
    Key("sasl.login.class", CLASS, None,
        doc="The class that logs this node in and keeps it logged in. Unset means the mechanism's built-in "
            "one."),
    Key("sasl.login.callback.handler.class", CLASS, None,
        doc="The class that answers the login module's questions, set by the prefix of a listener and a "
            "mechanism. Unset means the mechanism's built-in one."),
    Key("sasl.kerberos.service.name", STRING, None, update_mode=PER_BROKER,
        doc="The service part of the brokers' Kerberos principals. Unset means the JAAS text says it."),
    Key("sasl.kerberos.kinit.cmd", STRING, "/usr/bin/kinit", update_mode=PER_BROKER,
        doc="The program that renews Kerberos tickets."),
    Key("sasl.kerberos.ticket.renew.window.factor", DOUBLE, "0.8", update_mode=PER_BROKER,
        doc="The share of a Kerberos ticket's life after which it is renewed."),
    Key("sasl.kerberos.ticket.renew.jitter", DOUBLE, "0.05", update_mode=PER_BROKER,
        doc="The share by which the time of renewing a Kerberos ticket is varied at random."),
    Key("sasl.kerberos.min.time.before.relogin", LONG, "60000", update_mode=PER_BROKER,
        doc="Milliseconds at least between two Kerberos logins."),
    Key("sasl.login.refresh.window.factor", DOUBLE, "0.8", update_mode=PER_BROKER,
        doc="The share of a credential's life after which it is renewed, from 0.5 to 1. OAUTHBEARER only."),
    Key("sasl.login.refresh.window.jitter", DOUBLE, "0.05", update_mode=PER_BROKER,
        doc="The share, 0 to 0.25, of a credential's life that is added at random to the time of its "
            "renewal. OAUTHBEARER only."),
    Key("sasl.login.refresh.min.period.seconds", SHORT, "60", update_mode=PER_BROKER,
        doc="Seconds at least before a credential is renewed, 0 to 900, unless it would run out first. "
            "OAUTHBEARER only."),
    Key("sasl.login.refresh.buffer.seconds", SHORT, "300", update_mode=PER_BROKER,
        doc="Seconds before a credential runs out by which it should have been renewed, 0 to 3600. "
            "OAUTHBEARER only."),
    Key("sasl.login.connect.timeout.ms", INT, None,
        doc="Milliseconds a connection to the identity provider gets to be established. Unset means as long "
            "as the network takes."),
    Key("sasl.login.read.timeout.ms", INT, None,
        doc="Milliseconds the identity provider gets to answer. Unset means there is no limit."),
    Key("sasl.login.retry.backoff.max.ms", LONG, "10000",
        doc="The ceiling, in milliseconds, for the growing pause between attempts to reach the identity "
            "provider."),
    Key("sasl.login.retry.backoff.ms", LONG, "100",
        doc="Milliseconds before a failed attempt to reach the identity provider is first repeated."),
    Key("sasl.oauthbearer.jwt.retriever.class", CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",
        doc="The class that gets this node's own token from the identity provider."),
    Key("sasl.oauthbearer.jwt.validator.class", CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
        doc="The class that checks tokens."),
    Key("sasl.oauthbearer.scope", STRING, None,
        doc="The scope asked of the identity provider with a token. Unset means none is asked for."),
    Key("sasl.oauthbearer.client.credentials.client.id", STRING, None,
        doc="The client id this node gives the identity provider when it asks for a token. Unset means the "
            "JAAS text may say it."),
    Key("sasl.oauthbearer.client.credentials.client.secret", PASSWORD, None,
        doc="The secret that goes with the client id this node gives the identity provider. Unset means the "
            "JAAS text may say it."),
    Key("sasl.oauthbearer.assertion.algorithm", STRING, "RS256", one_of_any_case("ES256", "RS256"),
        doc="How the assertions this node sends the identity provider are signed: RS256 or ES256."),
    Key("sasl.oauthbearer.assertion.claim.aud", STRING, None,
        doc="The audience claim of the assertions this node makes. Unset leaves it out."),
    Key("sasl.oauthbearer.assertion.claim.exp.seconds", INT, "300", between(0, 86_400),
        doc="Seconds for which the assertions this node makes are valid."),
    Key("sasl.oauthbearer.assertion.claim.iss", STRING, None,
        doc="The issuer claim of the assertions this node makes. Unset leaves it out."),
    Key("sasl.oauthbearer.assertion.claim.jti.include", BOOLEAN, "false",
        doc="Whether each assertion this node makes carries a unique id."),
    Key("sasl.oauthbearer.assertion.claim.nbf.seconds", INT, "60", between(0, 3600),
        doc="Seconds before it is made from which an assertion is already valid, to allow for clocks that "
            "differ."),
    Key("sasl.oauthbearer.assertion.claim.sub", STRING, None,
        doc="The subject claim of the assertions this node makes. Unset leaves it out."),
    Key("sasl.oauthbearer.assertion.file", STRING, None,
        doc="A file with a finished assertion to send. Unset means this node makes its assertions."),
    Key("sasl.oauthbearer.assertion.private.key.file", STRING, None,
        doc="The PEM file of the private key that signs the assertions this node makes. Unset means it "
            "makes none."),
    Key("sasl.oauthbearer.assertion.private.key.passphrase", PASSWORD, None,
        doc="The password of the key that signs assertions. Unset means that key is not encrypted."),
    Key("sasl.oauthbearer.assertion.template.file", STRING, None,
        doc="A JSON file with headers and claims that every assertion this node makes starts from. Unset "
            "means there are none to start from."),
    Key("sasl.oauthbearer.scope.claim.name", STRING, "scope",
        doc="The claim of a token that holds its scopes."),
    Key("sasl.oauthbearer.sub.claim.name", STRING, "sub",
        doc="The claim of a token that holds its subject, which becomes the principal's name."),
    Key("sasl.oauthbearer.token.endpoint.url", STRING, None,
        doc="Where this node asks for its own token. A file: URL names a file that holds the token."),
    Key("sasl.oauthbearer.jwks.endpoint.url", STRING, None,
        doc="Where the public keys that check tokens' signatures are found: an HTTP address or, as a file: "
            "URL, a file."),
    Key("sasl.oauthbearer.jwks.endpoint.refresh.ms", LONG, "3600000",
        doc="Milliseconds between fetches of the public keys that check tokens' signatures."),
    Key("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", LONG, "100",
        doc="Milliseconds before a failed fetch of the public keys is first repeated."),
    Key("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", LONG, "10000",
        doc="The ceiling, in milliseconds, for the growing pause between repeated fetches of the public "
            "keys."),
    Key("sasl.oauthbearer.clock.skew.seconds", INT, "30",
        doc="Seconds by which the identity provider's clock may differ from this node's when a token's "
            "times are checked."),
    Key("sasl.oauthbearer.expected.audience", LIST, "",
        doc="The audiences of which a token has to name at least one, separated by commas. Empty means the "
            "audience is not checked."),
    Key("sasl.oauthbearer.expected.issuer", STRING, None,
        doc="The issuer a token has to come from. Unset means the issuer is not checked."),
    Key("delegation.token.secret.key", PASSWORD, None,
        doc="The secret delegation tokens are signed with, the same on all brokers and controllers. Unset "
            "means there are no delegation tokens."),
    Key("delegation.token.max.lifetime.ms", LONG, "604800000", at_least(1),
        doc="Milliseconds after which a delegation token can no longer be renewed."),
    Key("delegation.token.expiry.time.ms", LONG, "86400000", at_least(1),
        doc="Milliseconds a delegation token is valid before it has to be renewed."),
    Key("delegation.token.expiry.check.interval.ms", LONG, "3600000", at_least(1),
        doc="Milliseconds between the controller's rounds of removing delegation tokens that ran out."),
)
# fmt: on
