// SPDX-License-Identifier: Apache-2.0
//
// The recording: what the injected library writes and everything else reads.
//
// One file per process image (a fork or an exec starts a new file). A file is a FileHeader page and
// then blocks of kBlockSize bytes. A block belongs to one writer (a thread), which alone writes it:
// record bytes first, then `committed` (release); a reader stops at `committed`.
//
// Each writer has one live block, a shared mapping of the file, so whatever was committed survives
// any death of the process, SIGKILL included. A full live block is copied to a block of its own by
// pwrite() and begins again with the next sequence number: pages that stay mapped cost no faults
// (a fresh page of a mapped file costs 5 us, a copied one 1 us). A death between the two steps
// leaves the same (writer, sequence) twice: readers take it once.
//
// Units: times are CLOCK_MONOTONIC nanoseconds, sizes are bytes, unless a name says otherwise.
// Byte order and alignment: little endian, records are multiples of 8 bytes, 8-aligned.
// Compatibility: a record type's meaning never changes; fields are only appended (readers use
// `size`), unknown types are skipped and counted. kFormatVersion rises when a reader of the old
// version would misread a file.
#pragma once

#include <atomic>
#include <cstdint>

namespace gpubusy::recording {

inline constexpr char kFileMagic[8] = {'G', 'P', 'U', 'B', 'U', 'S', 'Y', '\n'};
inline constexpr std::uint32_t kFormatVersion = 1;
inline constexpr std::uint32_t kHeaderSize = 4096;
inline constexpr std::uint32_t kBlockSize = 64 * 1024;
inline constexpr std::uint32_t kBlockMagic = 0x4b4c4247;  // "GBLK"
inline constexpr const char* kFileSuffix = ".gpubusy";

// ---- file header (first page) ------------------------------------------------------------------

struct FileHeader {
  char magic[8];
  std::uint32_t version;
  std::uint32_t header_size;
  std::uint32_t block_size;
  std::uint32_t pid;
  std::uint32_t parent_pid;
  std::uint32_t pointer_bits;
  std::uint64_t start_ns;                   // CLOCK_MONOTONIC when the file was made
  std::uint64_t start_unix_ns;              // CLOCK_REALTIME at the same instant
  std::uint64_t process_start_ticks;        // of /proc/self/stat: with pid, identifies the process
  std::int32_t rank;                        // -1: not known
  std::int32_t world_size;                  // -1: not known
  std::int32_t local_rank;                  // -1: not known
  std::atomic<std::uint32_t> state;         // FileState; kOpen at a crash
  std::atomic<std::uint64_t> end_ns;        // 0 until the process ended in an orderly way
  std::atomic<std::uint64_t> lost_records;  // dropped: budget, full disk, no block
  std::atomic<std::uint64_t> blocks;        // blocks handed out; the file may be longer or shorter
  std::atomic<std::uint64_t> last_flush_ns;
  std::atomic<std::uint64_t> steps_seen;  // step edges so far, also those outside windows
  char library_version[32];
  char host[256];  // UTF-8 as the system gives it
  char executable[1024];
  char command_line[2048];  // arguments separated by '\0', cut at the end
  // Of which run of the launcher this is (kRunVariable); 0: of none, or an older file. Runs that
  // share a directory at one time, as the ranks of a job do, tell their recordings apart by it.
  std::uint64_t run;
};
static_assert(sizeof(FileHeader) <= kHeaderSize);
inline constexpr const char* kRunVariable = "GPUBUSY_INTERNAL_RUN";  // hexadecimal

enum class FileState : std::uint32_t {
  kOpen = 0,            // process still runs, or died without a word
  kFinished = 1,        // closed by an orderly exit
  kExecuted = 2,        // the process image was replaced by exec
  kDiskFull = 3,        // recording stopped: no space
  kBudgetSpent = 4,     // recording stopped: GPUBUSY_MAX_SIZE
  kDescriptorLost = 5,  // recording stopped: the program closed or replaced our descriptor
  kWriteFailed = 6,     // recording stopped: the file system reported another error
  kFileLimit = 7,       // recording stopped: RLIMIT_FSIZE (ulimit -f)
};

// ---- blocks ------------------------------------------------------------------------------------

struct BlockHeader {
  std::uint32_t magic;
  std::uint32_t thread_id;               // gettid()
  std::uint32_t sequence;                // 0,1,2… within the writer
  std::atomic<std::uint32_t> committed;  // valid bytes behind this header
  std::uint64_t start_ns;
  std::uint64_t offset;  // of this header in the file
  std::uint32_t writer;  // unique in the file; a thread id may come again
  std::uint32_t reserved[7];
};
static_assert(sizeof(BlockHeader) == 64);

// ---- records -----------------------------------------------------------------------------------

enum class RecordType : std::uint16_t {
  kPadding = 0,
  // events
  kCall = 1,           // an intercepted call: CallRecord + payload by category
  kDeviceTime = 2,     // DeviceTimeRecord
  kStepEdge = 3,       // StepEdgeRecord
  kWindow = 4,         // WindowRecord
  kLost = 5,           // LostRecord
  kRecording = 6,      // RecordingRecord
  kRange = 7,          // RangeRecord, perhaps with its text
  kActivity = 8,       // ActivityRecord + payload by kind: CUPTI saw the device work
  kCorrelation = 9,    // CorrelationRecord: which call is which in CUPTI's count
  kApiActivity = 10,   // ApiActivityRecord: CUPTI saw a call that no hook saw
  kOverhead = 11,      // OverheadRecord
  kDropped = 12,       // DroppedRecord
  kGapSample = 13,     // GapSampleRecord: what a launching thread did while nothing was launched
  kHostCounters = 14,  // HostCountersRecord: what the kernel counted
  kWorkerLook = 15,    // WorkerLookRecord: what a process that the program made did meanwhile
  // definitions; always written before the first record that uses them, but perhaps in the block
  // of another thread: a reader collects all definitions first
  kKernel = 16,     // KernelRecord + name
  kCode = 17,       // CodeRecord + strings
  kStackNode = 18,  // StackNodeRecord
  kThread = 19,     // ThreadRecord + name
  kStream = 20,     // StreamRecord
  kDevice = 21,     // DeviceRecord + name
  kNotice = 22,     // NoticeRecord + text
  kGraph = 23,      // GraphRecord
  kSetting = 24,    // SettingRecord + "name=value": the configuration in force
  kFunction = 25,   // ApiRecord + name: api id -> name, category
  kRangeText = 26,  // RangeTextRecord + text: a message, domain or category of ranges
  kModule = 27,     // ModuleRecord + path, build id: a loaded ELF object
  kReach = 28,      // ReachRecord + one byte of ReachFlags for each api id
  kHost = 29,       // HostRecord: what the host offers this process
  // events again
  kGilHolder = 30,  // GilHolderRecord: which thread held the GIL that a launching thread waited for
};

struct RecordHeader {
  RecordType type;
  std::uint16_t size;   // bytes with this header and all payload, multiple of 8
  std::uint32_t value;  // meaning depends on type (named in each record)
};
static_assert(sizeof(RecordHeader) == 8);
inline constexpr std::uint32_t kMaxRecordSize = 32 * 1024;

// What kind of call a hook is; decides the payload behind CallRecord. Written as u8: append only.
enum class Category : std::uint8_t {
  kOther = 0,
  kLaunch = 1,         // LaunchPayload: one kernel
  kGraphLaunch = 2,    // GraphLaunchPayload
  kCopy = 3,           // CopyPayload
  kMemset = 4,         // MemsetPayload
  kSync = 5,           // SyncPayload: waits for the device
  kDeviceAlloc = 6,    // AllocPayload
  kDeviceFree = 7,     // AllocPayload (size 0 where not known)
  kHostAlloc = 8,      // AllocPayload: pinned host memory obtained or registered
  kHostFree = 9,       // AllocPayload
  kStream = 10,        // SyncPayload (handle of the stream): create, destroy, wait event
  kEvent = 11,         // SyncPayload (event and stream)
  kProfiler = 12,      // no payload: cudaProfilerStart/Stop
  kModule = 13,        // no payload: registration, module load
  kHostFunction = 14,  // SyncPayload: a host callback in a stream
  kCapture = 15,       // SyncPayload: stream capture begins or ends
  kContext = 16,       // no payload: current device or context changes
};

// kLibrary (cuDNN, NCCL) is never written: what these do are ranges.
enum class Layer : std::uint8_t { kRuntime = 0, kDriver = 1, kLibrary = 2 };

enum CallFlags : std::uint16_t {
  kCallCaptured = 1,         // the stream was being captured: no device work followed
  kCallPerThreadStream = 2,  // _ptsz/_ptds variant: stream 0 means the thread's own
  kCallTimed = 4,            // a DeviceTimeRecord follows for this correlation
  kCallUntimedCapture = 8,   // not timed, since a capture was active somewhere
  kCallUntimedLimit = 16,    // not timed, since the timer pool was exhausted
  kCallLong = 32,            // CallRecord::duration counts kLongDurationUnit
  kCallUntimedFailed = 64,   // not timed: no context yet, or the driver refused an event
  kCallUnhooked = 128,       // never in a file: made by the reader from an ApiActivityRecord
};
inline constexpr std::uint32_t kLongDurationUnit = 1024;  // ns; calls of 4.3 s and more

struct CallRecord {
  RecordHeader header;  // value: correlation id, unique in the file, from 1
  std::uint64_t start_ns;
  std::uint32_t duration;      // ns, or kLongDurationUnit with kCallLong
  std::uint16_t api;           // index into kFunction definitions
  std::uint16_t flags;         // CallFlags
  std::uint32_t python_stack;  // StackNode id, 0: none. Python frames alone
  std::uint32_t native_stack;  // StackNode id, 0: none. Native and Python frames, or native alone
  std::uint32_t stream;        // Stream id, 0: call has no stream
  std::int16_t result;         // cudaError_t or CUresult
  std::int16_t device;         // current device, -1: not known
};
static_assert(sizeof(CallRecord) == 40);

struct LaunchPayload {
  std::uint32_t kernel;        // Kernel id
  std::uint32_t shared_bytes;  // dynamic
  std::uint32_t grid_x;
  std::uint16_t grid_y, grid_z;             // CUDA's limits: 65,535
  std::uint16_t block_x, block_y, block_z;  // 1,024
  std::uint16_t reserved;
};
static_assert(sizeof(LaunchPayload) == 24);

struct GraphLaunchPayload {
  std::uint64_t graph_exec;  // handle
  std::uint32_t graph;       // Graph id, 0: its content was not seen
  std::uint32_t reserved;
};

enum class MemoryKind : std::uint8_t {
  kUnknown = 0,
  kPageable = 1,
  kPinned = 2,
  kDevice = 3,
  kArray = 4,
  kManaged = 5
};
enum class CopyDirection : std::uint8_t {
  kUnknown = 0,
  kHostToDevice = 1,
  kDeviceToHost = 2,
  kDeviceToDevice = 3,
  kHostToHost = 4,
  kPeerToPeer = 5
};

struct CopyPayload {
  std::uint64_t bytes;  // bytes moved (for 2D/3D: width*height*depth, not pitch)
  std::uint64_t source;
  std::uint64_t destination;
  CopyDirection direction;
  MemoryKind source_kind;
  MemoryKind destination_kind;
  std::uint8_t asynchronous;   // 1: an Async form
  std::int16_t source_device;  // peer copies, else -1
  std::int16_t destination_device;
};
static_assert(sizeof(CopyPayload) == 32);

struct MemsetPayload {
  std::uint64_t bytes;
  std::uint64_t destination;
  std::uint32_t pattern;
  std::uint8_t asynchronous;
  std::uint8_t reserved[3];
};

struct AllocPayload {
  std::uint64_t address;
  std::uint64_t bytes;
};

struct SyncPayload {
  std::uint64_t handle;  // stream or event handle, 0: device or context
  std::uint64_t other;   // event of a stream call
};

enum class TimeSource : std::uint8_t { kNone = 0, kEvents = 1, kCupti = 2 };

// When the device really worked for a call. Comes later than the call, from any thread.
struct DeviceTimeRecord {
  RecordHeader header;  // value: correlation id of the call
  std::uint64_t start_ns;
  std::uint64_t end_ns;
  std::uint32_t uncertainty_ns;  // of the conversion to CLOCK_MONOTONIC, not of the length
  std::uint32_t stream;
  std::int16_t device;
  TimeSource source;
  std::uint8_t reserved;
  std::uint32_t graph_node;  // 0: not a node of a graph
};
static_assert(sizeof(DeviceTimeRecord) == 40);

// ---- what CUPTI saw
// ------------------------------------------------------------------------------- Times are
// converted to CLOCK_MONOTONIC by the writer. CUPTI counts calls in a way of its own; the reader
// joins its records with the calls (recording/activities.hpp), in whatever order they come.

enum class ActivityKind : std::uint8_t { kNone = 0, kKernel = 1, kCopy = 2, kMemset = 3 };

struct ActivityRecord {
  RecordHeader header;  // value: CUPTI's correlation id; that of a graph launch for all its nodes
  std::uint64_t start_ns;
  std::uint64_t end_ns;
  std::uint64_t graph_node;      // CUPTI's id, 0: not a node of a graph
  std::uint32_t uncertainty_ns;  // of the conversion to CLOCK_MONOTONIC, not of the length
  std::uint32_t stream;          // CUPTI's id
  std::uint32_t context;         // CUPTI's id
  std::uint32_t graph;           // CUPTI's id of the executable graph, 0: none
  std::int16_t device;
  ActivityKind kind;
  std::uint8_t epoch;  // CUPTI's ids are unique within one: it may begin to count anew
  std::uint8_t reserved[4];
};
static_assert(sizeof(ActivityRecord) == 56);

struct KernelActivityPayload {
  std::uint32_t kernel;  // Kernel id
  std::uint32_t dynamic_shared_bytes, static_shared_bytes;
  std::uint32_t local_bytes;  // of each thread
  std::uint32_t grid_x;
  std::uint16_t grid_y, grid_z;
  std::uint16_t block_x, block_y, block_z;
  std::uint16_t registers;  // of each thread
};
static_assert(sizeof(KernelActivityPayload) == 32);

struct CopyActivityPayload {
  std::uint64_t bytes;
  CopyDirection direction;
  MemoryKind source_kind, destination_kind;
  std::uint8_t asynchronous;
  std::int16_t source_device, destination_device;  // peer copies, else -1
};
static_assert(sizeof(CopyActivityPayload) == 16);

struct MemsetActivityPayload {
  std::uint64_t bytes;
  std::uint32_t pattern;
  std::uint32_t reserved;
};

struct CorrelationRecord {
  RecordHeader header;     // value: correlation id of the CallRecord
  std::uint32_t activity;  // CUPTI's correlation id
  std::uint32_t epoch;
  std::uint64_t start_ns, end_ns;  // of the call as CUPTI saw it; 0: not known
};
static_assert(sizeof(CorrelationRecord) == 32);

struct ApiActivityRecord {
  RecordHeader header;  // value: CUPTI's correlation id
  std::uint64_t start_ns, end_ns;
  std::uint32_t thread;  // low half of pthread_self(), or gettid() where the program chose that
  std::int32_t result;
  std::uint16_t api;  // index into kFunction definitions
  std::uint16_t epoch;
  std::uint16_t reserved[2];
};
static_assert(sizeof(ApiActivityRecord) == 40);

// Time that CUPTI or the driver took beside the program's own work.
enum class OverheadKind : std::uint32_t {  // values of CUpti_ActivityOverheadKind
  kUnknown = 0,
  kCompiler = 1,
  kBufferFlush = 1 << 16,
  kInstrumentation = 2 << 16,
  kResource = 3 << 16,
  kModuleLoading = 4 << 16,
  kFunctionLoading = 5 << 16,
  kLaunchQueueFull = 6 << 16,  // the call waited for room in the device's queue
  kBufferRequest = 7 << 16,
};
struct OverheadRecord {
  RecordHeader header;  // value: OverheadKind
  std::uint64_t start_ns, end_ns;
  std::uint32_t thread;  // as in ApiActivityRecord, 0: not of a thread
  std::uint32_t reserved;
};
static_assert(sizeof(OverheadRecord) == 32);

struct DroppedRecord {
  RecordHeader header;  // value: records of CUPTI's that were lost since the last DroppedRecord
  std::uint64_t time_ns;
};

enum class StepSource : std::uint8_t {
  kNone = 0,
  kOptimizer = 1,
  kKernel = 2,
  kCall = 3,
  kNvtx = 4
};

// The end of a step; the next begins at the same time.
struct StepEdgeRecord {
  RecordHeader header;  // value: number of the step that ended (0 for the first)
  std::uint64_t time_ns;
  std::uint32_t thread_id;
  StepSource source;
  std::uint8_t reserved[3];
};

enum class WindowKind : std::uint8_t {
  kScheduled = 0,  // `active` steps of the schedule
  kPrelude = 1,    // before the first step edge: kept so that a run without steps is not lost
  kWholeRun = 2,   // no step source was asked for
  kCaptured = 3,   // between the program's own marks: GPUBUSY_CAPTURE_RANGE
};
enum class WindowEvent : std::uint8_t {
  kBegin = 0,
  kEnd = 1,
  kCut = 2 /* budget or process end */
};

struct WindowRecord {
  RecordHeader header;  // value: index of the window, 0,1,2…
  std::uint64_t time_ns;
  std::uint32_t first_step;
  std::uint32_t steps;  // planned at kBegin, completed at kEnd and kCut
  WindowKind kind;
  WindowEvent event;
  std::uint16_t reserved[3];
};

// Recording of calls begins or pauses (between windows). Work that was asked for in a pause may
// still run after its end.
struct RecordingRecord {
  RecordHeader header;  // value: 1 begins, 0 pauses
  std::uint64_t time_ns;
};

struct LostRecord {
  RecordHeader header;  // value: number of records lost since the last LostRecord of the thread
  std::uint64_t time_ns;
};

// ---- what launching threads do meanwhile
// ----------------------------------------------------------- While no launching thread has made a
// call for some time, each is looked at now and then.

enum GapFlags : std::uint8_t {
  kGapTorn = 1,          // the thread ran on: inner Python frames are left out
  kGapUnmoved = 2,       // it has not run since the look before
  kGapInSystemCall = 4,  // system_call and argument are set
  kGapOutside = 8,       // it was blocked outside of any system call (a page fault)
  kGapInterpreter = 16,  // it waits for a lock of the Python interpreter itself: the GIL
  kGapCollecting = 32,   // the interpreter collects garbage, in this thread
};
enum class GapFile : std::uint8_t {  // what the system call's descriptor stands for
  kNone = 0,
  kOther = 1,
  kFile = 2,
  kPipe = 3,
  kSocket = 4,
  kCharacter = 5,
};

struct GapSampleRecord {
  RecordHeader header;     // value: gettid() of the thread that was looked at
  std::uint64_t time_ns;   // of one round: all threads' looks in it have the same
  std::uint64_t since_ns;  // of the round before in the same silence, or when the silence began
  std::uint64_t argument;  // the first of the system call
  std::uint64_t run_ns, wait_ns;  // since then: on a processor, ready but on none; 0 where not told
  std::uint32_t major_faults;     // since then
  std::uint32_t python_stack;     // StackNode id, 0: none
  std::uint32_t native_stack;     // StackNode id; only of a blocked thread
  std::uint16_t system_call;      // as the kernel numbers them
  std::uint8_t state;             // as in /proc: 'R', 'S', 'D', …; 0: not told
  std::uint8_t flags;             // GapFlags
  GapFile file;
  std::uint8_t reserved[7];
};
static_assert(sizeof(GapSampleRecord) == 72);

// The thread that held the GIL while another one that is looked at waited for it. There is none
// where it is not known.
struct GilHolderRecord {
  RecordHeader header;         // value: gettid() of the holder
  std::uint64_t time_ns;       // of the round of looks
  std::uint32_t waiter;        // gettid()
  std::uint32_t python_stack;  // of the holder: StackNode id, 0: none
  std::uint8_t flags;          // GapFlags: kGapTorn
  std::uint8_t reserved[7];
  char name[16];  // the kernel's name of the holder, ends with '\0'
};
static_assert(sizeof(GilHolderRecord) == 48);

// ---- what the kernel counts
// ------------------------------------------------------------------------

// Bits in HostCountersRecord::known: append only. All rise from the begin of the process, the group
// or the machine, but for those that say otherwise.
enum class HostCounter : std::uint8_t {
  // of the process; …Thread: of the thread that makes the edge
  kUserNs = 0,
  kSystemNs = 1,
  kMinorFaults = 2,
  kMajorFaults = 3,
  kVoluntarySwitches = 4,
  kInvoluntarySwitches = 5,
  kThreadUserNs = 6,
  kThreadSystemNs = 7,
  kThreadMinorFaults = 8,
  kThreadMajorFaults = 9,
  kThreadVoluntarySwitches = 10,
  kThreadInvoluntarySwitches = 11,
  // how much later than it had asked for the helper thread was woken, this time; not written now
  kHelperLateNs = 12,
  // kThread, since that thread was asked before: on a processor; ready, but on none, which the
  // kernel counts when such a wait ends; and how long ago that was
  kThreadRanNs = 13,
  kThreadWaitedNs = 14,
  kThreadSinceNs = 15,
  // of the control group with the tightest quota; time is summed over processors
  kQuotaPeriods = 16,
  kThrottledPeriods = 17,
  kThrottledNs = 18,
  // of the control group with the tightest limit on memory
  kMemoryHigh = 20,
  kMemoryMax = 21,
  kMemoryOomKills = 22,
  // pressure (PSI)
  kCpuSomeNs = 24,
  kCpuFullNs = 25,
  kIoSomeNs = 26,
  kIoFullNs = 27,
  kMemorySomeNs = 28,
  kMemoryFullNs = 29,
  // of the machine; kSwappedBytes: of the process that are swapped out now
  kSwapInPages = 32,
  kSwapOutPages = 33,
  kSwappedBytes = 34,
};
inline constexpr int kHostCounters = 64;

// Where the counters of a topic come from, or why there are none.
enum class HostSource : std::uint8_t {
  kNotTold = 0,
  kGroup = 1,  // a control group that the process is in
  kMachine = 2,
  kNoFile = 16,     // the kernel has no such file here
  kRefused = 17,    // it may not be read
  kStrange = 18,    // what it holds was not understood
  kNotNeeded = 19,  // there is no swap space
};
enum class HostTopic : std::uint8_t { kQuota = 0, kMemory = 1, kPressure = 2, kSwap = 3 };
inline constexpr int kHostTopics = 4;

enum class HostMoment : std::uint32_t {
  kEdge = 0,
  kHelper = 1,
  // By the helper, of one launching thread, where there is a quota: when that thread had waited for
  // a processor, or the group was throttled, since it was asked before.
  kThread = 2,
};

// A u64 for each bit of `known`, lowest first, behind the struct.
struct HostCountersRecord {
  RecordHeader header;  // value: HostMoment
  std::uint64_t time_ns;
  std::uint64_t known;              // by HostCounter
  std::uint32_t thread_id;          // that counted; kThread: that is counted
  std::uint32_t step;               // kEdge: that ended here
  HostSource sources[kHostTopics];  // kHelper
  std::uint32_t reserved;
};
static_assert(sizeof(HostCountersRecord) == 40);

// In such a silence, a look at a process below this one: what its main thread does.
enum WorkerFlags : std::uint8_t {
  kWorkerForked = 1,     // forked, and no other program since: its Python frames can be found
  kWorkerForbidden = 2,  // … but the kernel does not let its memory be read
  kWorkerSpawned = 4,    // a process of multiprocessing's that runs an interpreter of its own
  kWorkerService = 8,    // … that serves multiprocessing itself: forkserver, resource_tracker
};

struct WorkerLookRecord {
  RecordHeader header;  // value: its process id
  std::uint64_t time_ns;
  std::uint64_t since_ns;  // of the look at it before, in whatever silence; 0: this is the first
  std::uint64_t argument;  // the first of the system call
  std::uint64_t run_ns, wait_ns;  // its main thread since then: on a processor, ready but on none
  std::uint32_t process_run_ms;   // all of its threads since then, in steps of a tick
  std::uint32_t storage_wait_ms;  // since then; 0 where the kernel does not count it
  std::uint32_t major_faults;     // since then
  std::uint32_t parent_pid;
  std::uint32_t python_stack;  // StackNode id, 0: none
  std::uint16_t system_call;   // as the kernel numbers them
  std::uint8_t state;          // as in /proc: 'R', 'S', 'D', …; 0: not told
  std::uint8_t flags;          // GapFlags
  GapFile file;
  std::uint8_t worker_flags;  // WorkerFlags
  std::uint16_t left_out;     // processes for which there was no room
  std::uint32_t reserved;
  char name[16];  // as in /proc, ends with '\0'
};
static_assert(sizeof(WorkerLookRecord) == 96);

// ---- ranges: what the program (NVTX) or a library (cuDNN, NCCL) names

enum class RangeKind : std::uint8_t {
  kPushPop = 0,   // begun and ended by one thread
  kStartEnd = 1,  // may end on another thread, and cross others
  kMark = 2,      // an instant
  kCall = 3,      // a call of a library's function
};
enum class RangePayload : std::uint8_t {
  kNone = 0,
  kUint64 = 1,
  kInt64 = 2,
  kDouble = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat = 6,  // as NVTX
  kBytes = 7,
};
enum RangeFlags : std::uint16_t {
  kRangeOpen = 1,    // had not ended when its window (or the process) did: end_ns is that time
  kRangeCut = 2,     // the text is longer than was kept
  kRangeColour = 4,  // `colour` is set
};

// Written when a range ends, by the thread that ends it. A range that is open when a window ends
// may be written before, by the thread that ended the window; if it is written again when it ends,
// both have the same `id`.
struct RangeRecord {
  RecordHeader header;  // value: RangeText id of the message; 0: the text follows, if there is any
  std::uint64_t start_ns;  // may lie before the recording began
  std::uint64_t end_ns;
  std::uint64_t payload;        // 32-bit values in the low half
  std::uint32_t domain;         // RangeText id, 0: the default domain
  std::uint32_t category;       // as the program numbers it, 0: none
  std::uint32_t category_name;  // RangeText id, 0: not named
  std::uint32_t colour;         // ARGB
  std::uint32_t thread_id;      // that began it
  std::uint32_t id;             // not 0: see above
  RangeKind kind;
  RangePayload payload_type;
  std::uint16_t flags;  // RangeFlags
  std::uint16_t text_bytes;
  std::uint16_t reserved;
};
static_assert(sizeof(RangeRecord) == 64);

// Variable parts are UTF-8 (or whatever the program had: readers repair it), not terminated,
// directly behind the struct; the record is padded with zeros.
struct KernelRecord {
  RecordHeader header;       // value: Kernel id, from 1
  std::uint64_t function;    // host function or CUfunction handle
  std::uint32_t name_bytes;  // mangled, as registered
  std::uint32_t reserved;
};

// A Python code object: enough to turn an instruction offset into a line later, elsewhere.
struct CodeRecord {
  RecordHeader header;  // value: Code id, from 1
  std::int32_t first_line;
  std::uint8_t python_minor;  // of CPython 3.x: selects the line table's format
  std::uint8_t flags;         // 1: file or name was cut, 2: line table was cut
  std::uint16_t file_bytes;
  std::uint16_t name_bytes;  // qualified name where there is one
  std::uint16_t line_table_bytes;
  std::uint32_t reserved;
  // file, name, line table follow
};
static_assert(sizeof(CodeRecord) == 24);

enum class FrameKind : std::uint8_t { kPython = 1, kNative = 2 };

// A stack is a chain of nodes from the innermost frame to the root. Python: location is
// code id << 32 | instruction offset in bytes. Native: the return address.
//
// In a CallRecord's native_stack the Python frames that one eval call of the interpreter runs
// (innermost first) come right before the native frame of that call, _PyEval_EvalFrameDefault: what
// Python code calls, the Python code, the native function that runs it, and who called that. Where
// Python stacks are off or not supported, where the place of Python's frames was not clear, and in
// old recordings it is native alone.
struct StackNodeRecord {
  RecordHeader header;   // value: node id, from 1
  std::uint32_t parent;  // node id of the caller, 0: root
  FrameKind kind;
  std::uint8_t flags;  // 1: the stack was cut behind this frame; Python frames with native ones
                       // behind them: only Python frames are missing there
  std::uint16_t reserved;
  std::uint64_t location;
};

struct ThreadRecord {
  RecordHeader header;  // value: gettid()
  std::uint64_t pthread;
  std::uint64_t first_ns;
  std::uint32_t name_bytes;
  std::uint32_t flags;  // 1: the program gave the name (NVTX); it outlives others
};

struct StreamRecord {
  RecordHeader header;  // value: Stream id; 7 is the legacy default stream, others from 13
  std::uint64_t handle;
  std::int16_t device;
  std::uint16_t flags;  // as given at creation; 0xffff: creation was not seen
  std::int32_t priority;
};

struct DeviceRecord {
  RecordHeader header;  // value: device ordinal
  std::uint64_t total_memory;
  std::uint32_t sm_count;
  std::uint16_t compute_major, compute_minor;
  std::uint32_t max_threads_per_block, max_threads_per_sm, registers_per_block, warp_size;
  std::uint32_t shared_per_block, shared_per_sm;
  std::uint32_t runtime_version, driver_version;
  std::uint32_t name_bytes;
  std::uint32_t reserved;
};

struct GraphRecord {
  RecordHeader header;  // value: Graph id, from 1
  std::uint64_t graph_exec;
  std::uint32_t kernels, copies, memsets, others;  // nodes
};

enum class NoticeKind : std::uint16_t {
  kInfo = 0,
  kConfiguration = 1,  // a bad setting was met
  kPython = 2,         // Python stacks are off and why
  kDeviceTime = 3,     // device times are missing or estimated, and why
  kBudget = 4,         // something was left out for size
  kHooks = 5,          // a function could not be intercepted or found
};

struct NoticeRecord {
  RecordHeader header;  // value: NoticeKind
  std::uint64_t time_ns;
  std::uint32_t text_bytes;
  std::uint32_t reserved;
};

struct SettingRecord {
  RecordHeader header;
  std::uint32_t text_bytes;
  std::uint32_t reserved;
};

struct ApiRecord {
  RecordHeader header;  // value: api id
  Category category;
  Layer layer;
  std::uint16_t name_bytes;
  std::uint32_t reserved;
};

struct RangeTextRecord {
  RecordHeader header;  // value: RangeText id, from 1
  std::uint32_t text_bytes;
  std::uint32_t reserved;
};

// A loaded ELF object. Where addresses overlap those of an earlier one, that one was unloaded.
struct ModuleRecord {
  RecordHeader header;       // value: Module id, from 1
  std::uint64_t time_ns;     // when it was found, some time after it was loaded
  std::uint64_t begin, end;  // mapped addresses
  std::uint64_t base;        // load bias: address in the file = address - base
  std::uint16_t path_bytes;  // as the loader has it; 0: the program itself
  std::uint8_t build_id_bytes;
  std::uint8_t flags;  // 1: the path was cut
  std::uint32_t reserved;
  // path, build id follow
};
static_assert(sizeof(ModuleRecord) == 48);

// How the program came by a function of the hook table, besides being linked to it (which shows
// only by its calls).
enum ReachFlags : std::uint8_t {
  kReachDlsym = 1,
  kReachDlvsym = 2,
  kReachProcAddress = 4,  // cuGetProcAddress
};
enum ReachState : std::uint32_t {
  kReachDriverLoaded = 1,  // the program has loaded libcuda.so.1, or what needs it
};

// The state so far; later ones of a file only add to it.
struct ReachRecord {
  RecordHeader header;  // value: ReachState
  std::uint64_t time_ns;
  std::uint32_t function_count;    // bytes behind the record, by api id
  std::uint32_t modules_left_out;  // loaded objects for which there was no room
};
static_assert(sizeof(ReachRecord) == 24);

enum HostFlags : std::uint32_t {
  kHostTellsQuota = 1,        // whether there is a quota is known
  kHostTellsMemoryLimit = 2,  // … a limit on memory
  kHostTellsMemory = 4,       // memory_bytes and swap_bytes are known
};

// What the host offers this process when its file is opened; once per file.
struct HostRecord {
  RecordHeader header;  // value: HostFlags
  std::uint64_t time_ns;
  std::uint64_t memory_bytes, swap_bytes;     // of the machine
  std::uint64_t memory_limit_bytes;           // of its control groups, the tightest; 0: none
  std::uint64_t cpu_quota_us, cpu_period_us;  // the same: processor time in each period; 0: none
  std::uint32_t online_processors;            // of the machine; 0: not known
  std::uint32_t usable_processors;            // by the thread's affinity; 0: not known
  std::uint32_t page_bytes;
  std::uint32_t reserved;
};
static_assert(sizeof(HostRecord) == 72);

}  // namespace gpubusy::recording
