/* The native form of kwire/wire/record_scan.py, which specifies the result. Both pass the same tests. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000 /* the buffer protocol is in the stable ABI since Python 3.11 */
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

/* Equal to Problem and Rejection in record_scan.py. */
enum {
    NO_PROBLEM,
    RECORD_MISSING,
    LENGTH_INCOMPLETE,
    LENGTH_TOO_LONG,
    LENGTH_NEGATIVE,
    RECORD_TRUNCATED,
    FIELD_INVALID,
    HEADER_COUNT_INVALID,
    HEADER_KEY_MISSING,
    BYTES_AFTER_HEADERS,
    BYTES_AFTER_RECORDS,
};
enum { KEY_MISSING, TIMESTAMP_OUT_OF_RANGE };

#define NO_TIMESTAMP (-1)
#define MAX_REJECTED 65536

typedef struct {
    const uint8_t *at;
    const uint8_t *end;
} Cursor;

/* Reads an unsigned varint of at most `max_bytes` bytes. Returns 0, or LENGTH_INCOMPLETE or LENGTH_TOO_LONG. */
static int read_unsigned(Cursor *cursor, int max_bytes, uint64_t *value)
{
    const uint8_t *at = cursor->at;
    uint64_t result = 0;
    for (int number = 0; number < max_bytes; number++) {
        if (at == cursor->end)
            return LENGTH_INCOMPLETE;
        uint8_t byte = *at++;
        result |= (uint64_t)(byte & 0x7F) << (7 * number);
        if (byte < 0x80) {
            cursor->at = at;
            *value = result;
            return 0;
        }
    }
    return LENGTH_TOO_LONG;
}

static inline int read_varint(Cursor *cursor, int32_t *value)
{
    if (cursor->at < cursor->end && *cursor->at < 0x80) { /* nearly all varints */
        uint32_t byte = *cursor->at++;
        *value = (int32_t)(byte >> 1) ^ -(int32_t)(byte & 1);
        return 0;
    }
    uint64_t raw;
    int problem = read_unsigned(cursor, 5, &raw);
    if (!problem) {
        uint32_t bits = (uint32_t)raw; /* Java drops the bits beyond 32 */
        *value = (int32_t)((bits >> 1) ^ (0U - (bits & 1)));
    }
    return problem;
}

static inline int read_varlong(Cursor *cursor, uint64_t *value)
{
    uint64_t raw;
    int problem = read_unsigned(cursor, 10, &raw);
    if (!problem)
        *value = (raw >> 1) ^ (0ULL - (raw & 1));
    return problem;
}

/* Skips a nullable field. Sets `is_null`. */
static inline bool skip_field(Cursor *cursor, bool *is_null)
{
    int32_t size;
    if (read_varint(cursor, &size))
        return false;
    *is_null = size < 0;
    if (size <= 0)
        return true;
    if (size > cursor->end - cursor->at)
        return false;
    cursor->at += size;
    return true;
}

typedef struct {
    uint64_t timestamp_delta;
    int32_t offset_delta;
    bool has_key;
} Fields;

static int scan_record(Cursor *record, Fields *fields)
{
    bool is_null;
    int32_t count;
    if (record->at == record->end)
        return FIELD_INVALID;
    record->at++; /* attributes */
    if (read_varlong(record, &fields->timestamp_delta) || read_varint(record, &fields->offset_delta))
        return FIELD_INVALID;
    if (!skip_field(record, &is_null))
        return FIELD_INVALID;
    fields->has_key = !is_null;
    if (!skip_field(record, &is_null))
        return FIELD_INVALID;
    if (read_varint(record, &count))
        return FIELD_INVALID;
    if (count < 0 || count > record->end - record->at)
        return HEADER_COUNT_INVALID;
    for (int32_t number = 0; number < count; number++) {
        if (!skip_field(record, &is_null))
            return FIELD_INVALID;
        if (is_null)
            return HEADER_KEY_MISSING;
        if (!skip_field(record, &is_null))
            return FIELD_INVALID;
    }
    return record->at == record->end ? NO_PROBLEM : BYTES_AFTER_HEADERS;
}

static int scan_length(Cursor *records, Cursor *record)
{
    int32_t length;
    if (records->at == records->end)
        return RECORD_MISSING;
    int problem = read_varint(records, &length);
    if (problem)
        return problem;
    if (length < 0)
        return LENGTH_NEGATIVE;
    if (length > records->end - records->at)
        return RECORD_TRUNCATED;
    record->at = records->at;
    record->end = records->at += length;
    return NO_PROBLEM;
}

static PyObject *scan(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    if (nargs != 6) {
        PyErr_SetString(PyExc_TypeError, "scan() takes 6 positional arguments");
        return NULL;
    }
    long long count = PyLong_AsLongLong(args[1]);
    long long base_timestamp = PyLong_AsLongLong(args[2]);
    long long earliest = PyLong_AsLongLong(args[3]);
    long long latest = PyLong_AsLongLong(args[4]);
    int keys_required = PyObject_IsTrue(args[5]);
    if (PyErr_Occurred())
        return NULL;
    Py_buffer view;
    if (PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE) < 0)
        return NULL;

    PyObject *rejected = PyList_New(0);
    Cursor records = {view.buf, (const uint8_t *)view.buf + view.len};
    int problem = NO_PROBLEM;
    long long index = 0, rejected_count = 0;
    int64_t max_timestamp = NO_TIMESTAMP;
    bool sequential = true, wrong_timestamp = false;
    while (rejected && index < count) {
        Cursor record;
        Fields fields;
        problem = scan_length(&records, &record);
        if (!problem)
            problem = scan_record(&record, &fields);
        if (problem)
            break;
        sequential &= fields.offset_delta == index;
        int64_t timestamp = (int64_t)((uint64_t)base_timestamp + fields.timestamp_delta);
        int reason = -1;
        if (keys_required && !fields.has_key)
            reason = KEY_MISSING;
        else if (timestamp != NO_TIMESTAMP && (timestamp < earliest || timestamp > latest))
            reason = TIMESTAMP_OUT_OF_RANGE;
        if (reason < 0) {
            if (timestamp > max_timestamp)
                max_timestamp = timestamp;
        }
        else {
            wrong_timestamp |= reason == TIMESTAMP_OUT_OF_RANGE;
            if (rejected_count++ < MAX_REJECTED) {
                PyObject *entry =
                    Py_BuildValue("(LiLi)", index, reason, (long long)timestamp, (int)fields.offset_delta);
                if (!entry || PyList_Append(rejected, entry) < 0)
                    Py_CLEAR(rejected);
                Py_XDECREF(entry);
            }
        }
        index++;
    }
    if (!problem && records.at != records.end)
        problem = BYTES_AFTER_RECORDS;
    PyBuffer_Release(&view);
    if (!rejected)
        return NULL;
    return Py_BuildValue("(iLLOLON)", problem, index, (long long)max_timestamp, sequential ? Py_True : Py_False,
                         rejected_count, wrong_timestamp ? Py_True : Py_False, rejected);
}

static PyMethodDef methods[] = {
    {"scan", (PyCFunction)(void (*)(void))scan, METH_FASTCALL, "See kwire.wire.record_scan.scan."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT, .m_name = "_record_scan", .m_size = 0, .m_methods = methods,
};

PyMODINIT_FUNC PyInit__record_scan(void)
{
    return PyModule_Create(&module);
}
