"""What the keys of TLS, SASL, principals and delegation tokens do."""

from __future__ import annotations

from typing import Final

SECURITY_DOCS: Final = {
    "authorizer.class.name": (
        "The class that decides who may do what. Empty means everyone may do everything."
    ),
    "sasl.mechanism.controller.protocol": (
        "The SASL mechanism with which this node authenticates to controllers."
    ),
    "security.inter.broker.protocol": (
        "The security protocol between brokers, which selects the listener of that name. Cannot be set "
        "together with inter.broker.listener.name."
    ),
    "sasl.server.max.receive.size": (
        "The largest message, in bytes, accepted from a client that has not authenticated yet."
    ),
    "security.providers": (
        "Classes that supply security providers, separated by commas. Unset means none are added."
    ),
    "principal.builder.class": (
        "The class that turns what a client authenticated with into the principal that ACLs and quotas name."
    ),
    "ssl.client.auth": (
        "Whether clients have to show a certificate: required, requested (one is checked if shown) or none. "
        "Can be set for one listener by prefix."
    ),
    "ssl.principal.mapping.rules": (
        "Rules, separated by commas, that make a short name of a client certificate's subject; the first "
        "that matches is used. DEFAULT takes the whole subject."
    ),
    "ssl.allow.dn.changes": (
        "Whether a key store replaced on the running broker may have a certificate with another subject."
    ),
    "ssl.allow.san.changes": (
        "Whether a key store replaced on the running broker may have a certificate with other alternative "
        "names."
    ),
    "ssl.protocol": (
        "The TLS version connections are set up for. Which older ones are still accepted is up to "
        "ssl.enabled.protocols."
    ),
    "ssl.provider": "The security provider that does TLS. Unset means the platform's own.",
    "ssl.enabled.protocols": (
        "The TLS versions a connection may use, separated by commas. The newest that both ends allow is used."
    ),
    "ssl.keystore.type": "The format of the key store, such as JKS, PKCS12 or PEM.",
    "ssl.keystore.location": (
        "The file with this node's private key and certificate. Unset means there is no such file."
    ),
    "ssl.keystore.password": (
        "The password of the key store file. Unset means it has none; PEM key stores never have one."
    ),
    "ssl.key.password": (
        "The password of the private key, in the key store file or in ssl.keystore.key. Unset means the key "
        "is not encrypted."
    ),
    "ssl.keystore.key": (
        "This node's private key itself, as PEM in PKCS#8, instead of in a file. Used with the key store "
        "type PEM only."
    ),
    "ssl.keystore.certificate.chain": (
        "This node's certificate and those that vouch for it, as PEM, instead of in a file. Used with the "
        "key store type PEM only."
    ),
    "ssl.truststore.type": "The format of the trust store, such as JKS, PKCS12 or PEM.",
    "ssl.truststore.location": (
        "The file with the certificates this node trusts. Unset means the platform's trusted certificates, "
        "unless ssl.truststore.certificates is set."
    ),
    "ssl.truststore.password": (
        "The password of the trust store file. Unset means it is read without checking that it is intact."
    ),
    "ssl.truststore.certificates": (
        "The certificates this node trusts themselves, as PEM, instead of in a file. Used with the trust "
        "store type PEM only."
    ),
    "ssl.keymanager.algorithm": (
        "The algorithm that chooses which of this node's keys and certificates a connection uses."
    ),
    "ssl.trustmanager.algorithm": "The algorithm that checks the certificates the other end shows.",
    "ssl.endpoint.identification.algorithm": (
        "How a server's certificate is compared with the host name it was reached by: https compares them, "
        "empty does not."
    ),
    "ssl.secure.random.implementation": (
        "The random number generator TLS uses. Unset means the platform's choice."
    ),
    "ssl.cipher.suites": (
        "The cipher suites a connection may use, separated by commas. Empty means every suite the platform "
        "has on by default."
    ),
    "ssl.engine.factory.class": (
        "The class that sets up TLS in place of the built-in one. Unset means the built-in one does, from "
        "the other ssl settings."
    ),
    "sasl.mechanism.inter.broker.protocol": (
        "The SASL mechanism with which brokers authenticate to each other."
    ),
    "sasl.enabled.mechanisms": (
        "The SASL mechanisms clients may authenticate with, separated by commas. Can be set for one listener "
        "by prefix."
    ),
    "sasl.server.callback.handler.class": (
        "The class that checks clients' credentials, set by the prefix of a listener and a mechanism. Unset "
        "means the mechanism's built-in one."
    ),
    "sasl.kerberos.principal.to.local.rules": (
        "Rules, separated by commas, that make a short name of a Kerberos principal; the first that matches "
        "is used. DEFAULT takes what comes before the first / or @."
    ),
    "sasl.jaas.config": (
        "The login module and its options as JAAS text: MODULE required OPTION=VALUE;. A broker sets it by "
        "the prefix of a listener and a mechanism."
    ),
    "sasl.client.callback.handler.class": (
        "The class that supplies credentials when this node is itself the client. Unset means the "
        "mechanism's built-in one."
    ),
    "sasl.login.class": (
        "The class that logs this node in and keeps it logged in. Unset means the mechanism's built-in one."
    ),
    "sasl.login.callback.handler.class": (
        "The class that answers the login module's questions, set by the prefix of a listener and a "
        "mechanism. Unset means the mechanism's built-in one."
    ),
    "sasl.kerberos.service.name": (
        "The service part of the brokers' Kerberos principals. Unset means the JAAS text says it."
    ),
    "sasl.kerberos.kinit.cmd": "The program that renews Kerberos tickets.",
    "sasl.kerberos.ticket.renew.window.factor": (
        "The share of a Kerberos ticket's life after which it is renewed."
    ),
    "sasl.kerberos.ticket.renew.jitter": (
        "The share by which the time of renewing a Kerberos ticket is varied at random."
    ),
    "sasl.kerberos.min.time.before.relogin": "Milliseconds at least between two Kerberos logins.",
    "sasl.login.refresh.window.factor": (
        "The share of a credential's life after which it is renewed, from 0.5 to 1. OAUTHBEARER only."
    ),
    "sasl.login.refresh.window.jitter": (
        "The share, 0 to 0.25, of a credential's life that is added at random to the time of its renewal. "
        "OAUTHBEARER only."
    ),
    "sasl.login.refresh.min.period.seconds": (
        "Seconds at least before a credential is renewed, 0 to 900, unless it would run out first. "
        "OAUTHBEARER only."
    ),
    "sasl.login.refresh.buffer.seconds": (
        "Seconds before a credential runs out by which it should have been renewed, 0 to 3600. OAUTHBEARER "
        "only."
    ),
    "sasl.login.connect.timeout.ms": (
        "Milliseconds a connection to the identity provider gets to be established. Unset means as long as "
        "the network takes."
    ),
    "sasl.login.read.timeout.ms": (
        "Milliseconds the identity provider gets to answer. Unset means there is no limit."
    ),
    "sasl.login.retry.backoff.max.ms": (
        "The ceiling, in milliseconds, for the growing pause between attempts to reach the identity provider."
    ),
    "sasl.login.retry.backoff.ms": (
        "Milliseconds before a failed attempt to reach the identity provider is first repeated."
    ),
    "sasl.oauthbearer.jwt.retriever.class": (
        "The class that gets this node's own token from the identity provider."
    ),
    "sasl.oauthbearer.jwt.validator.class": "The class that checks tokens.",
    "sasl.oauthbearer.scope": (
        "The scope asked of the identity provider with a token. Unset means none is asked for."
    ),
    "sasl.oauthbearer.client.credentials.client.id": (
        "The client id this node gives the identity provider when it asks for a token. Unset means the JAAS "
        "text may say it."
    ),
    "sasl.oauthbearer.client.credentials.client.secret": (
        "The secret that goes with the client id this node gives the identity provider. Unset means the JAAS "
        "text may say it."
    ),
    "sasl.oauthbearer.assertion.algorithm": (
        "How the assertions this node sends the identity provider are signed: RS256 or ES256."
    ),
    "sasl.oauthbearer.assertion.claim.aud": (
        "The audience claim of the assertions this node makes. Unset leaves it out."
    ),
    "sasl.oauthbearer.assertion.claim.exp.seconds": (
        "Seconds for which the assertions this node makes are valid."
    ),
    "sasl.oauthbearer.assertion.claim.iss": (
        "The issuer claim of the assertions this node makes. Unset leaves it out."
    ),
    "sasl.oauthbearer.assertion.claim.jti.include": (
        "Whether each assertion this node makes carries a unique id."
    ),
    "sasl.oauthbearer.assertion.claim.nbf.seconds": (
        "Seconds before it is made from which an assertion is already valid, to allow for clocks that differ."
    ),
    "sasl.oauthbearer.assertion.claim.sub": (
        "The subject claim of the assertions this node makes. Unset leaves it out."
    ),
    "sasl.oauthbearer.assertion.file": (
        "A file with a finished assertion to send. Unset means this node makes its assertions."
    ),
    "sasl.oauthbearer.assertion.private.key.file": (
        "The PEM file of the private key that signs the assertions this node makes. Unset means it makes "
        "none."
    ),
    "sasl.oauthbearer.assertion.private.key.passphrase": (
        "The password of the key that signs assertions. Unset means that key is not encrypted."
    ),
    "sasl.oauthbearer.assertion.template.file": (
        "A JSON file with headers and claims that every assertion this node makes starts from. Unset means "
        "there are none to start from."
    ),
    "sasl.oauthbearer.scope.claim.name": "The claim of a token that holds its scopes.",
    "sasl.oauthbearer.sub.claim.name": (
        "The claim of a token that holds its subject, which becomes the principal's name."
    ),
    "sasl.oauthbearer.token.endpoint.url": (
        "Where this node asks for its own token. A file: URL names a file that holds the token."
    ),
    "sasl.oauthbearer.jwks.endpoint.url": (
        "Where the public keys that check tokens' signatures are found: an HTTP address or, as a file: URL, "
        "a file."
    ),
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": (
        "Milliseconds between fetches of the public keys that check tokens' signatures."
    ),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": (
        "Milliseconds before a failed fetch of the public keys is first repeated."
    ),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": (
        "The ceiling, in milliseconds, for the growing pause between repeated fetches of the public keys."
    ),
    "sasl.oauthbearer.clock.skew.seconds": (
        "Seconds by which the identity provider's clock may differ from this node's when a token's times are "
        "checked."
    ),
    "sasl.oauthbearer.expected.audience": (
        "The audiences of which a token has to name at least one, separated by commas. Empty means the "
        "audience is not checked."
    ),
    "sasl.oauthbearer.expected.issuer": (
        "The issuer a token has to come from. Unset means the issuer is not checked."
    ),
    "delegation.token.secret.key": (
        "The secret delegation tokens are signed with, the same on all brokers and controllers. Unset means "
        "there are no delegation tokens."
    ),
    "delegation.token.max.lifetime.ms": (
        "Milliseconds after which a delegation token can no longer be renewed."
    ),
    "delegation.token.expiry.time.ms": (
        "Milliseconds a delegation token is valid before it has to be renewed."
    ),
    "delegation.token.expiry.check.interval.ms": (
        "Milliseconds between the controller's rounds of removing delegation tokens that ran out."
    ),
}
