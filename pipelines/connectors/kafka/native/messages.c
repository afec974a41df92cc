/* Messages of a librdkafka consumer as the buffers of Arrow columns: no Python object is made of a message.
 *
 * Of librdkafka it has the functions that native_consumer.py binds, and the public structure of a message (rdkafka.h).
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef struct {
    int err;
    void *topic;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *own;
} message;

/* In the order of native_consumer.py. */
typedef struct {
    ptrdiff_t (*consume_batch_queue)(void *queue, int timeout_ms, message **messages, size_t most);
    int64_t (*message_timestamp)(const message *, int *kind);
    int (*message_headers)(const message *, void **headers);
    int (*header_get_all)(const void *headers, size_t index, const char **name, const void **value, size_t *size);
    const char *(*message_errstr)(const message *);
    void (*message_destroy)(message *);
} functions;

static functions kafka;

EXPORT void tallyflow_kafka_bind(const functions *found) {
    kafka = *found;
}

EXPORT ptrdiff_t tallyflow_kafka_poll(void *queue, int timeout_ms, message **messages, size_t most) {
    return kafka.consume_batch_queue(queue, timeout_ms, messages, most);
}

EXPORT void tallyflow_kafka_drop(message **messages, size_t count) {
    for (size_t i = 0; i < count; i++) kafka.message_destroy(messages[i]);
}

typedef struct {
    int64_t keys, values, headers, names, contents;
} sizes;

typedef struct {
    int32_t *key_offsets, *value_offsets, *header_offsets, *name_offsets, *content_offsets;
    uint8_t *keys, *values, *names, *contents;
    uint8_t *key_valid, *value_valid, *header_valid, *content_valid;
    int32_t *partitions, *errors, *time_kinds;
    int64_t *offsets, *times;
} columns;

static void *headers_of(const message *m) {
    void *headers = NULL;
    return m->err || kafka.message_headers(m, &headers) ? NULL : headers;
}

/* How many of the messages fit into columns of 32-bit offsets, at least one; `found` has their sizes. */
EXPORT size_t tallyflow_kafka_sizes(message **messages, size_t count, sizes *found) {
    const char *name;
    const void *content;
    size_t size, i;
    *found = (sizes){0};
    for (i = 0; i < count; i++) {
        const message *m = messages[i];
        sizes with = *found;
        with.keys += m->err ? 0 : (int64_t)m->key_len;
        with.values += m->err ? (int64_t)strlen(kafka.message_errstr(m)) : (int64_t)m->len;
        void *headers = headers_of(m);
        for (size_t h = 0; headers && !kafka.header_get_all(headers, h, &name, &content, &size); h++) {
            with.headers++;
            with.names += (int64_t)strlen(name);
            with.contents += content ? (int64_t)size : 0;
        }
        bool fits = with.keys <= INT32_MAX && with.values <= INT32_MAX && with.names <= INT32_MAX && with.contents <= INT32_MAX;
        if (i && !fits) break;
        *found = with;
    }
    return i;
}

static int32_t put(uint8_t *into, int32_t at, const void *from, size_t size) {
    memcpy(into + at, from, size);
    return at + (int32_t)size;
}

static void mark(uint8_t *bits, int64_t at) {
    bits[at / 8] |= (uint8_t)(1 << at % 8);
}

/* Fills columns of the sizes of exactly these messages. Bits of `*_valid` are zero before. The value of an error is its text. */
EXPORT void tallyflow_kafka_fill(message **messages, size_t count, const columns *c) {
    int32_t keys = 0, values = 0, names = 0, contents = 0, headers_before = 0;
    const char *name;
    const void *content;
    size_t size;
    c->key_offsets[0] = c->value_offsets[0] = c->header_offsets[0] = c->name_offsets[0] = c->content_offsets[0] = 0;
    for (size_t i = 0; i < count; i++) {
        const message *m = messages[i];
        c->errors[i] = m->err;
        c->partitions[i] = m->partition;
        c->offsets[i] = m->offset;
        c->times[i] = kafka.message_timestamp(m, &c->time_kinds[i]);
        if (m->err) {
            const char *text = kafka.message_errstr(m);
            values = put(c->values, values, text, strlen(text));
            mark(c->value_valid, (int64_t)i);
        } else {
            if (m->key) {
                keys = put(c->keys, keys, m->key, m->key_len);
                mark(c->key_valid, (int64_t)i);
            }
            if (m->payload) {
                values = put(c->values, values, m->payload, m->len);
                mark(c->value_valid, (int64_t)i);
            }
        }
        void *headers = headers_of(m);
        for (size_t h = 0; headers && !kafka.header_get_all(headers, h, &name, &content, &size); h++) {
            mark(c->header_valid, (int64_t)i);
            names = put(c->names, names, name, strlen(name));
            if (content) {
                contents = put(c->contents, contents, content, size);
                mark(c->content_valid, headers_before);
            }
            c->name_offsets[++headers_before] = names;
            c->content_offsets[headers_before] = contents;
        }
        c->key_offsets[i + 1] = keys;
        c->value_offsets[i + 1] = values;
        c->header_offsets[i + 1] = headers_before;
    }
}
