// Connect, produce the given values and consume them in a group. Standard input and output are as in `programs.py`.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const wait = 30 * time.Second

type input struct {
	Bootstrap string
	Authority string
	KeyStore  string
	Topic     string
	Values    []string
}

type output struct {
	Values []string `json:"values,omitempty"`
	Errors []string `json:"errors,omitempty"`
}

func main() {
	var given input
	if err := json.NewDecoder(os.Stdin).Decode(&given); err != nil {
		panic(err)
	}
	values, err := run(given)
	result := output{Values: values}
	for ; err != nil; err = errors.Unwrap(err) {
		result.Errors = append(result.Errors, fmt.Sprintf("%T: %v", err, err))
	}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		panic(err)
	}
}

func run(given input) ([]string, error) {
	settings, err := tlsConfig(given)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(given.Bootstrap),
		kgo.DialTLSConfig(settings),
		kgo.AllowAutoTopicCreation(),
		kgo.ConsumerGroup(given.Topic),
		kgo.ConsumeTopics(given.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	// A ping does not retry a connection, so the first error is the result.
	if err := client.Ping(ctx); err != nil {
		return nil, err
	}
	var records []*kgo.Record
	for _, value := range given.Values {
		records = append(records, &kgo.Record{Topic: given.Topic, Value: []byte(value)})
	}
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return nil, err
	}
	var consumed []string
	for len(consumed) < len(given.Values) {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("only %d records were consumed: %w", len(consumed), err)
		}
		for _, record := range fetches.Records() {
			consumed = append(consumed, string(record.Value))
		}
	}
	return consumed, client.CommitUncommittedOffsets(ctx)
}

func tlsConfig(given input) (*tls.Config, error) {
	authority, err := os.ReadFile(given.Authority)
	if err != nil {
		return nil, err
	}
	settings := &tls.Config{RootCAs: x509.NewCertPool()}
	settings.RootCAs.AppendCertsFromPEM(authority)
	if given.KeyStore != "" {
		own, err := tls.LoadX509KeyPair(given.KeyStore, given.KeyStore)
		if err != nil {
			return nil, err
		}
		settings.Certificates = []tls.Certificate{own}
	}
	return settings, nil
}
