// Connect, produce the given values and consume them in a group. Standard input and output are as in `programs.py`.

const { readFileSync } = require("fs");
const { Kafka, logLevel } = require("kafkajs");

const WAIT_MS = 30_000;

async function main({ bootstrap, authority, keyStore, topic, values }) {
  const own = keyStore && readFileSync(keyStore);
  const settings = {
    brokers: [bootstrap],
    ssl: { ca: [readFileSync(authority)], ...(own && { cert: own, key: own }) },
    logLevel: logLevel.NOTHING,
  };

  // A refused client would repeat the connection for ten seconds, with the same result.
  const first = new Kafka({ ...settings, retry: { retries: 0 } }).admin();
  await first.connect();
  await first.disconnect();

  const kafka = new Kafka(settings);
  const producer = kafka.producer();
  await producer.connect();
  await producer.send({ topic, messages: values.map((value) => ({ value })) });
  await producer.disconnect();

  const consumer = kafka.consumer({ groupId: topic });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  const consumed = [];
  await new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`only ${consumed.length} records were consumed`)), WAIT_MS).unref();
    const eachMessage = async ({ message }) => {
      consumed.push(message.value.toString());
      if (consumed.length >= values.length) resolve();
    };
    consumer.run({ eachMessage }).catch(reject);
  });
  await consumer.disconnect();
  return { values: consumed };
}

function errors(error) {
  return error ? [`${error.name}: ${error.message}`, ...errors(error.cause)] : [];
}

main(JSON.parse(readFileSync(0)))
  .catch((error) => ({ errors: errors(error) }))
  .then((result) => console.log(JSON.stringify(result)));
