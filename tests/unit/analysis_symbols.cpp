// SPDX-License-Identifier: Apache-2.0
//
// Names and lines of native addresses, against programs that say themselves which function and line
// an address is in. They are built here, in each way that programs are built.
#include <dlfcn.h>
#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "analysis/symbols/elf_object.hpp"
#include "analysis/symbols/name_file.hpp"
#include "analysis/symbols/native_names.hpp"
#include "analysis/symbols/recording_names.hpp"
#include "recording/file_source.hpp"

namespace gpubusy::analysis {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Prints for each call of probe(): its return address, the line and the function that it was called
// from; for an inlined function also those that it was called from.
constexpr const char* kSource = R"code(
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
__attribute__((noinline, cold)) static void probe(int line, const char* name, int outer_line,
                                                  const char* outer) {
  static bool first = true;
  if (first) {
    first = false;
    dl_iterate_phdr([](dl_phdr_info* info, size_t, void*) {
      for (int i = 0; i < info->dlpi_phnum; ++i) {
        const auto& p = info->dlpi_phdr[i];
        const size_t begin = info->dlpi_addr + p.p_vaddr;
        const auto here = reinterpret_cast<size_t>(&first);
        if (p.p_type == PT_LOAD && here >= begin && here < begin + p.p_memsz) {
          printf("base %zx\n", static_cast<size_t>(info->dlpi_addr));
        }
      }
      return 0;
    }, nullptr);
  }
  printf("%zx|%d|%s|%d|%s\n", reinterpret_cast<size_t>(__builtin_return_address(0)), line, name,
         outer_line, outer);
  fflush(stdout);
}
#define PROBE(name) do { probe(__LINE__, name, 0, ""); asm volatile("" ::: "memory"); } while (0)
#if defined(__clang__)
#define NOINLINE __attribute__((noinline))
#else
#define NOINLINE __attribute__((noipa))
#endif

NOINLINE void exported() { PROBE("exported()"); }
NOINLINE static void hidden() { PROBE("hidden()"); }
namespace space {
template <class T> struct Box {
  NOINLINE void put(T) { PROBE("space::Box<int>::put(int)"); }
};
namespace { NOINLINE void unnamed() { PROBE("space::(anonymous namespace)::unnamed()"); } }
void both() { unnamed(); Box<int>().put(1); asm volatile(""); }
}
static inline __attribute__((always_inline)) void leaf(int line, const char* outer) {
  probe(__LINE__, "leaf", line, outer); asm volatile("" ::: "memory");
}
NOINLINE void with_inlined() { leaf(__LINE__, "with_inlined()"); }
extern "C" NOINLINE void plain_c() { PROBE("plain_c"); }
NOINLINE int split(int n) {
  if (__builtin_expect(n > 100, 0)) {
    PROBE("split(int)");
    abort();
  }
  return n + 1;
}
NOINLINE void never_used() { PROBE("never"); }
#if VARIANT
NOINLINE void another() { PROBE("another()"); PROBE("another()"); }
#endif
extern "C" void run_all(int n) {
#if VARIANT
  another();
#endif
  exported();
  hidden();
  space::both();
  with_inlined();
  plain_c();
  const auto call = []() NOINLINE { PROBE("::operator()() const"); };
  call();
  if (n > 0) split(n + 100);
}
#if PROGRAM
int main(int count, char**) { run_all(count); }
#endif
)code";

constexpr const char* kHost = R"code(
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char** arguments) {
  void* library = dlopen(arguments[1], RTLD_NOW);
  if (library == nullptr) { puts(dlerror()); return 1; }
  reinterpret_cast<void (*)(int)>(dlsym(library, "run_all"))(count);
}
)code";

struct Truth {
  std::uint64_t location;
  int line, outer_line;
  std::string function, outer;
};

// A program or library, what it said of itself, and a recording of it.
struct Sample {
  std::string path;
  std::uint64_t base = 0;
  std::vector<Truth> truth;
  recording::Recording recording;
};

std::string output_of(const std::string& command) {
  std::string out;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  char buffer[4096];
  while (fgets(buffer, sizeof buffer, pipe) != nullptr) out += buffer;
  pclose(pipe);
  return out;
}

class Symbols : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/gpubusy-symbols-XXXXXX";
    directory_ = mkdtemp(name);
  }
  void TearDown() override { fs::remove_all(directory_); }

  std::string in(const std::string& name) const { return directory_ + "/" + name; }

  void must(const std::string& command) {
    const std::string wrapped = command + " && echo done-well";
    const std::string out = output_of(wrapped);
    ASSERT_THAT(out, HasSubstr("done-well")) << command << "\n" << out;
  }

  void compile(const std::string& out, const std::string& flags, const std::string& compiler,
               const char* source = kSource) {
    std::ofstream(in("sample.cpp")) << source;
    must(compiler + " -std=c++17 -w " + flags + " -o " + out + " " + in("sample.cpp") + " -ldl");
  }

  // Builds, runs, and records what it said.
  Sample sample(const std::string& flags, bool program = true, const std::string& compiler = "g++",
                const std::string& name = "sample") {
    const std::string path = in(name + (program ? "" : ".so"));
    compile(path, (program ? "-DPROGRAM=1 " : "-shared -fPIC ") + flags, compiler);
    return recorded(path, program);
  }

  Sample recorded(const std::string& path, bool program) {
    if (!program && !fs::exists(in("host"))) compile(in("host"), "", "g++", kHost);
    Sample s;
    s.path = path;
    std::istringstream lines(output_of((program ? "" : in("host") + " ") + path));
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("base ")) s.base = std::stoull(line.substr(5), nullptr, 16);
      std::vector<std::string> fields;
      std::istringstream text(line);
      for (std::string field; std::getline(text, field, '|');) fields.push_back(field);
      if (fields.size() < 4) continue;
      s.truth.push_back({std::stoull(fields[0], nullptr, 16), std::stoi(fields[1]),
                         std::stoi(fields[3]), fields[2], fields.size() > 4 ? fields[4] : ""});
    }
    EXPECT_GE(s.truth.size(), 8u) << path;
    s.recording.path = in("run.gpubusy");
    s.recording.pid = 77;
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    s.recording.host = host;
    s.recording.start_ns = 1000;
    s.recording.start_unix_ns =
        static_cast<std::uint64_t>(time(nullptr)) * 1'000'000'000 + 2'000'000'000;
    const recording::FileSource source(path);
    recording::Module module;
    module.time_ns = 1000;
    module.base = s.base;
    module.begin = s.base;
    module.end = s.base + source.size() + (16u << 20);
    module.path = path;
    const auto object = ElfObject::read(std::make_unique<recording::FileSource>(path));
    module.build_id = object->build_id();
    module.cut = false;
    s.recording.modules.push_back(module);
    return s;
  }

  enum Want { kNames = 1, kLines = 2, kAll = 3 };
  // Every address has the name and the line that the program said, and no other.
  void expect_truth(const Sample& s, int want, const SymbolOptions& options = {}) {
    const auto names = open_native_names(s.recording, options);
    for (const Truth& t : s.truth) {
      SCOPED_TRACE(t.function);
      const std::vector<NativeFrame>& frames = names->at(t.location);
      const NativeFrame& first = frames.front();
      EXPECT_EQ(first.module, s.path);
      EXPECT_EQ(first.offset, t.location - s.base);
      EXPECT_FALSE(first.doubtful);
      if ((want & kLines) != 0) {
        EXPECT_EQ(first.line, t.line);
        EXPECT_EQ(first.file, in("sample.cpp"));
        EXPECT_EQ(first.inlined, !t.outer.empty());
        if (!t.outer.empty()) {
          ASSERT_EQ(frames.size(), 2u);
          EXPECT_THAT(first.function, AnyOf(t.function, t.function + "(int, char const*)"));
          EXPECT_THAT(first.linkage, IsEmpty());
          EXPECT_EQ(frames.back().function, t.outer);
          EXPECT_EQ(frames.back().line, t.outer_line);
        }
      } else {
        EXPECT_EQ(first.line, 0);
        EXPECT_EQ(frames.size(), 1u);
      }
      const std::string& outermost = frames.back().function;
      EXPECT_FALSE(frames.back().inlined);
      if ((want & kNames) == 0) {
        EXPECT_THAT(outermost, IsEmpty());
      } else if (t.outer.empty()) {
        EXPECT_THAT(outermost, EndsWith(t.function));
      } else {
        EXPECT_EQ(outermost, t.outer);
      }
    }
  }

  std::string why(const Sample& s, const SymbolOptions& options = {}) {
    const auto names = open_native_names(s.recording, options);
    for (const Truth& t : s.truth) names->at(t.location);
    std::string out;
    for (const NameProblem& problem : names->problems()) out += to_text(problem) + "\n";
    return out;
  }

  std::string directory_;
};

struct Build {
  const char* name;
  const char* flags;
  bool program;
  const char* compiler;
};

class Builds : public Symbols, public ::testing::WithParamInterface<Build> {};

TEST_P(Builds, HaveNamesAndLines) {
  const Build& build = GetParam();
  if (std::system(("command -v " + std::string(build.compiler) + " >/dev/null").c_str()) != 0) {
    GTEST_SKIP() << build.compiler << " is not here";
  }
  expect_truth(sample(build.flags, build.program, build.compiler), kAll);
}

INSTANTIATE_TEST_SUITE_P(
    All, Builds,
    ::testing::Values(
        Build{"Plain", "-g", true, "g++"}, Build{"Optimised", "-g -O2", true, "g++"},
        Build{"NotPie", "-g -O2 -no-pie -fno-pie", true, "g++"},
        Build{"Shared", "-g -O2", false, "g++"}, Build{"SharedPlain", "-g", false, "g++"},
        Build{"Dwarf4", "-g -gdwarf-4 -O2", true, "g++"},
        Build{"Compressed", "-g -gz -O2", true, "g++"},
        Build{"SplitDwarf", "-g -gsplit-dwarf -O2", true, "g++"},
        Build{"GarbageCollected", "-g -O2 -ffunction-sections -fdata-sections -Wl,--gc-sections",
              true, "g++"},
        Build{"Lto", "-g -O2 -flto", true, "g++"}, Build{"Clang", "-g -O2", true, "clang++"},
        Build{"ClangShared", "-g -O1", false, "clang++"}),
    [](const auto& info) { return info.param.name; });

TEST_F(Symbols, WithoutDebugInformationThereAreNames) { expect_truth(sample("-O2"), kNames); }

TEST_F(Symbols, ColdPartsAreTheirFunctions) {
  const Sample s = sample("-g -O2");
  const Truth& cold = s.truth.back();
  ASSERT_EQ(cold.function, "split(int)");
  const auto names = open_native_names(s.recording, {});
  const NativeFrame& frame = names->at(cold.location).front();
  EXPECT_EQ(frame.function, "split(int)");
  EXPECT_EQ(frame.linkage, "_Z5spliti.cold");
}

TEST_F(Symbols, OfAStrippedFileOnlyExportedFunctionsAreNamed) {
  Sample s = sample("-O2 -fno-reorder-blocks-and-partition", false);
  must("strip " + s.path);
  const auto names = open_native_names(s.recording, {});
  for (const Truth& t : s.truth) {
    const std::string& function = names->at(t.location).front().function;
    const bool is_hidden = t.function == "hidden()" ||
                           t.function.find("anonymous") != t.function.npos ||
                           t.function.find("operator") != t.function.npos;
    EXPECT_EQ(function, is_hidden ? "" : t.outer.empty() ? t.function : t.outer);
  }
  const auto problems = names->problems();
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].addresses, 3u);
  EXPECT_FALSE(problems[0].curable);
  EXPECT_EQ(to_text(problems[0]), "sample.so: no symbol is there (3 native addresses)");
}

TEST_F(Symbols, DebugLinkBesideTheFile) {
  const Sample s = sample("-g -O2");
  must("cd " + directory_ +
       " && objcopy --only-keep-debug sample sample.dbg && strip sample && "
       "objcopy --add-gnu-debuglink=sample.dbg sample");
  expect_truth(s, kAll);
  must("cd " + directory_ + " && mkdir .debug && mv sample.dbg .debug/");
  expect_truth(s, kAll);
  must("cd " + directory_ + " && mkdir elsewhere && mv .debug/sample.dbg elsewhere/");
  EXPECT_THAT(why(s), HasSubstr("no symbol is there"));
  expect_truth(s, kAll, {{in("elsewhere")}});
}

TEST_F(Symbols, DebugLinkWithoutBuildIdNeedsItsCrc) {
  Sample s = sample("-g -O2 -Wl,--build-id=none");
  must("cd " + directory_ +
       " && objcopy --only-keep-debug sample sample.dbg && strip sample && "
       "objcopy --add-gnu-debuglink=sample.dbg sample");
  s = recorded(s.path, true);
  s.recording.start_unix_ns += 10'000'000'000;
  expect_truth(s, kAll);
  must("cd " + directory_ + " && printf x >>sample.dbg");
  expect_truth(s, 0);
}

TEST_F(Symbols, DebugFileByBuildId) {
  const Sample s = sample("-g -O2");
  const std::string id = s.recording.modules[0].build_id;
  ASSERT_EQ(id.size(), 40u);
  const std::string folder = in("debug/.build-id/") + id.substr(0, 2);
  must("mkdir -p " + folder + " && cd " + directory_ + " && objcopy --only-keep-debug sample " +
       folder + "/" + id.substr(2) + ".debug && strip sample");
  expect_truth(s, kAll, {{in("debug")}});
  // It is enough by itself, where the program is not.
  must("rm " + s.path);
  expect_truth(s, kAll, {{in("nowhere"), in("debug")}});
  EXPECT_THAT(why(s), HasSubstr("sample: its file is not here"));
}

TEST_F(Symbols, AFileThatWasBuiltAnewIsRefused) {
  const Sample s = sample("-g -O2");
  compile(s.path, "-DPROGRAM=1 -DVARIANT=1 -g -O2", "g++");
  expect_truth(s, 0);
  const auto names = open_native_names(s.recording, {});
  for (const Truth& t : s.truth) names->at(t.location);
  const auto problems = names->problems();
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].addresses, s.truth.size());
  EXPECT_TRUE(problems[0].curable);
  EXPECT_THAT(to_text(problems[0]),
              HasSubstr("sample: it has changed since the recording (8 native"));
}

TEST_F(Symbols, FilesInDirectories) {
  const Sample s = sample("-g -O2");
  // Of that name, of that path, and of any name: but for that build id.
  must("mkdir -p " + in("by-name") + " " + in("by-path") + directory_ + " " + in("any") + " " +
       in("wrong"));
  must("cp " + s.path + " " + in("by-name/sample"));
  must("cp " + s.path + " " + in("by-path") + s.path);
  must("cp " + s.path + " " + in("any/renamed.bin"));
  compile(in("wrong/sample"), "-DPROGRAM=1 -DVARIANT=1 -g -O2", "g++");
  must("rm " + s.path);
  expect_truth(s, kAll, {{in("by-name")}});
  expect_truth(s, kAll, {{in("by-path")}});
  expect_truth(s, kAll, {{in("any")}});
  expect_truth(s, kAll, {{in("wrong"), in("any")}});
  expect_truth(s, 0, {{in("wrong")}});
  EXPECT_THAT(why(s, {{in("wrong")}}), HasSubstr("its file is not here"));
}

TEST_F(Symbols, TheProgramItselfAndDeletedFiles) {
  Sample s = sample("-g -O2");
  s.recording.modules[0].path = "";
  s.recording.executable = s.path;
  expect_truth(s, kAll);
  s.recording.executable = s.path + " (deleted)";
  const auto names = open_native_names(s.recording, {});
  EXPECT_EQ(names->at(s.truth[0].location).front().line, s.truth[0].line);
}

TEST_F(Symbols, WithoutBuildIdTimesDecide) {
  Sample s = sample("-g -O2 -Wl,--build-id=none");
  ASSERT_EQ(s.recording.modules[0].build_id, "");
  expect_truth(s, kAll);
  s.recording.start_unix_ns -= 1'000'000'000'000;
  expect_truth(s, 0);
  EXPECT_THAT(why(s), HasSubstr("it has changed since the recording"));
  s.recording.start_unix_ns += 1'000'000'000'000;
  s.recording.host += "-other";
  expect_truth(s, 0);
  EXPECT_THAT(why(s), HasSubstr("it has no build id"));
  // A copy that the user points to is taken, with a mark.
  must("mkdir " + in("copies") + " && cp -p " + s.path + " " + in("copies"));
  const auto names = open_native_names(s.recording, {{in("copies")}});
  const NativeFrame& frame = names->at(s.truth[0].location).front();
  EXPECT_EQ(frame.function, "exported()");
  EXPECT_TRUE(frame.doubtful);
  EXPECT_THAT(to_text(frame), EndsWith(") ?"));
  EXPECT_THAT(why(s, {{in("copies")}}), HasSubstr("so that " + in("copies/sample") + " may be"));
}

TEST_F(Symbols, MiniDebugInfo) {
  Sample s = sample("-O2", false);
  // As Fedora makes it: the symbols of functions that are not exported, packed, in the file itself.
  must("cd " + directory_ +
       " && objcopy --only-keep-debug sample.so mini && "
       "objcopy -S --remove-section .comment --keep-symbol=_ZL6hiddenv mini && strip sample.so && "
       "python3 -c 'import lzma; open(\"mini.xz\", \"wb\").write(lzma.compress(open(\"mini\", "
       "\"rb\").read()))' && objcopy --add-section .gnu_debugdata=mini.xz sample.so");
  const auto names = open_native_names(s.recording, {});
  for (const Truth& t : s.truth) {
    if (t.function != "hidden()" && t.function != "exported()") continue;
    EXPECT_EQ(names->at(t.location).front().function, t.function);
  }
}

TEST_F(Symbols, AliasesHaveOneNameAlways) {
  std::ofstream(in("alias.c")) << R"code(
    int counter;
    static void __attribute__((noinline, used)) local_name(void) { ++counter; }
    void __attribute__((alias("local_name"))) __under(void);
    void __attribute__((alias("local_name"))) plain(void);
    void __attribute__((alias("local_name"))) plainer_but_longer(void);
    void __attribute__((weak, alias("local_name"))) a(void);
    __asm__(".globl versioned_1\nversioned_1:\n.type versioned_1, @function\nnop\nret\n"
            ".size versioned_1, .-versioned_1\n.symver versioned_1,versioned@@V1");
    __asm__(".type nothing, @function\nnothing:\nnop\nnop\nret\n"
            "outer_label:\nnop\nnop\nnop\nnop\n");
  )code";
  std::ofstream(in("map")) << "V1 { global: *; };";
  must("gcc -O1 -shared -fPIC -Wl,--version-script=" + in("map") + " -o " + in("alias.so") + " " +
       in("alias.c"));
  const auto object = ElfObject::read(std::make_unique<recording::FileSource>(in("alias.so")));
  ASSERT_NE(object, nullptr);
  const SymbolTable all(*object, SymbolTable::Kind::kAll);
  const SymbolTable exported(*object, SymbolTable::Kind::kExported);
  const auto address_of = [&](const std::string& name) {
    std::istringstream lines(output_of("nm " + in("alias.so")));
    for (std::string line; std::getline(lines, line);) {
      if (line.ends_with(" " + name)) return std::stoull(line, nullptr, 16);
    }
    ADD_FAILURE() << name;
    return 0ull;
  };
  EXPECT_EQ(all.at(address_of("local_name") + 1), "plain");
  EXPECT_EQ(exported.at(address_of("local_name") + 1), "plain");
  EXPECT_THAT(all.at(address_of("nothing") + 2), "nothing");
  EXPECT_THAT(all.at(address_of("outer_label") + 1), "outer_label");
  EXPECT_THAT(exported.at(address_of("nothing") + 1), IsEmpty());
  EXPECT_THAT(all.at(address_of("versioned@@V1")), AnyOf("versioned", "versioned_1"));
  EXPECT_THAT(all.at(0), IsEmpty());
  EXPECT_THAT(all.at(~0ull), IsEmpty());
}

TEST_F(Symbols, WholeFunction) {
  EXPECT_EQ(whole_function("_Z3foov.cold"), "_Z3foov");
  EXPECT_EQ(whole_function("foo.part.0"), "foo");
  EXPECT_EQ(whole_function("foo.constprop.0.isra.1.cold"), "foo");
  EXPECT_EQ(whole_function("foo._omp_fn.0"), "foo._omp_fn.0");
  EXPECT_EQ(whole_function("foo.partial"), "foo.partial");
  EXPECT_EQ(whole_function("foo"), "foo");
  EXPECT_EQ(whole_function(""), "");
}

TEST_F(Symbols, TheKernelsOwnCode) {
  const unsigned long image = getauxval(AT_SYSINFO_EHDR);
  void* vdso = dlopen("linux-vdso.so.1", RTLD_NOW | RTLD_NOLOAD);
  void* function = vdso == nullptr ? nullptr : dlsym(vdso, "__vdso_clock_gettime");
  if (image == 0 || function == nullptr) GTEST_SKIP() << "no vdso here";
  const auto* bytes = reinterpret_cast<const std::byte*>(image);
  Elf64_Ehdr header;
  std::memcpy(&header, bytes, sizeof header);
  recording::Recording recording;
  recording::Module module{0, image, image + 0x4000, image, "linux-vdso.so.1", "", false};
  const auto* segments = reinterpret_cast<const Elf64_Phdr*>(bytes + header.e_phoff);
  for (int i = 0; i < header.e_phnum; ++i) {
    if (segments[i].p_type != PT_NOTE) continue;
    const std::byte* note = bytes + segments[i].p_offset;
    for (const std::byte* end = note + segments[i].p_filesz; note < end;) {
      Elf64_Nhdr head;
      std::memcpy(&head, note, sizeof head);
      const std::byte* text = note + sizeof head + (head.n_namesz + 3) / 4 * 4;
      if (head.n_type == NT_GNU_BUILD_ID) {
        for (unsigned k = 0; k < head.n_descsz; ++k) {
          char digits[3];
          std::snprintf(digits, sizeof digits, "%02x", std::to_integer<unsigned>(text[k]));
          module.build_id += digits;
        }
      }
      note = text + (head.n_descsz + 3) / 4 * 4;
    }
  }
  ASSERT_NE(module.build_id, "");
  recording.modules = {module};
  const auto location = reinterpret_cast<std::uint64_t>(function) + 4;
  EXPECT_THAT(open_native_names(recording, {})->at(location).front().function,
              HasSubstr("clock_gettime"));
  recording.modules[0].build_id[0] ^= 1;
  const auto other = open_native_names(recording, {});
  EXPECT_THAT(other->at(location).front().function, IsEmpty());
  EXPECT_THAT(to_text(other->problems().at(0)), HasSubstr("the code of another kernel"));
}

TEST_F(Symbols, AddressesOfNoModule) {
  recording::Recording recording;
  const auto names = open_native_names(recording, {});
  for (const std::uint64_t location : {0x7f0012345678ull, 0ull, 1ull, ~0ull}) {
    const std::vector<NativeFrame>& frames = names->at(location);
    ASSERT_EQ(frames.size(), 1u);
    EXPECT_EQ(frames[0].offset, location);
    EXPECT_THAT(frames[0].module, IsEmpty());
  }
  EXPECT_EQ(to_text(names->at(0x7f0012345678)[0]), "0x7f0012345678");
  ASSERT_EQ(names->problems().size(), 1u);
  EXPECT_EQ(names->problems()[0].addresses, 4u);
}

TEST_F(Symbols, OneFileAfterAnotherAtOnePlace) {
  Sample s = sample("-g -O2");
  recording::Module earlier = s.recording.modules[0];
  earlier.path = "/somewhere/earlier.so";
  earlier.build_id = "0123";
  earlier.begin -= 0x10000;
  s.recording.modules.insert(s.recording.modules.begin(), earlier);
  const auto names = open_native_names(s.recording, {});
  const NativeFrame& later = names->at(s.truth[0].location).front();
  EXPECT_EQ(later.function, "exported()");
  EXPECT_EQ(later.module, s.path);
  EXPECT_TRUE(later.doubtful);
  const NativeFrame& first = names->at(earlier.begin + 0x100).front();
  EXPECT_EQ(first.module, "/somewhere/earlier.so");
  EXPECT_FALSE(first.doubtful);
  EXPECT_THAT(to_text(first), ::testing::StartsWith("earlier.so+0x"));
  EXPECT_THAT(why(s), HasSubstr("another file lay there at another time"));
  // The same one again is no other.
  s.recording.modules[0] = s.recording.modules[1];
  expect_truth(s, kAll);
}

// ---- what is kept beside a recording ------------------------------------------------------------

class Kept : public Symbols {
 protected:
  // A recording with a stack of each address of the sample.
  Sample with_nodes(Sample s) {
    std::uint32_t id = 0;
    for (const Truth& t : s.truth) {
      ++id;
      s.recording.stack_nodes[id] = {id - 1, recording::FrameKind::kNative, 0, t.location};
    }
    return s;
  }
  std::string kept_path() const { return in("run.gpubusy.symbols"); }
  std::string kept_text() const {
    std::ifstream file(kept_path());
    return {std::istreambuf_iterator<char>(file), {}};
  }
};

TEST_F(Kept, NamesWithoutTheFiles) {
  const Sample s = with_nodes(sample("-g -O2"));
  ASSERT_TRUE(RecordingNames(s.recording, {}).keep());
  const std::string text = kept_text();
  EXPECT_THAT(text, ::testing::StartsWith("gpubusy symbols 1\n"));
  must("rm " + s.path);
  expect_truth(s, kAll);
  EXPECT_EQ(why(s), "");
  // What is known stays known.
  ASSERT_TRUE(RecordingNames(s.recording, {}).keep());
  EXPECT_EQ(kept_text(), text);
  // Nothing else lies about.
  for (const auto& entry : fs::directory_iterator(directory_)) {
    EXPECT_THAT(entry.path().filename().string(), ::testing::Not(EndsWith(".tmp")));
  }
}

TEST_F(Kept, NeverOfAnotherBuild) {
  Sample s = with_nodes(sample("-g -O2"));
  ASSERT_TRUE(RecordingNames(s.recording, {}).keep());
  must("rm " + s.path);
  s.recording.modules[0].build_id[3] ^= 1;
  expect_truth(s, 0);
}

TEST_F(Kept, WithoutBuildIdOfThisRecordingOnly) {
  Sample s = with_nodes(sample("-g -O2 -Wl,--build-id=none"));
  ASSERT_TRUE(RecordingNames(s.recording, {}).keep());
  must("rm " + s.path);
  expect_truth(s, kAll);
  s.recording.pid += 1;
  expect_truth(s, 0);
}

TEST_F(Kept, LinesAddToAFileWithoutThem) {
  const Sample s = with_nodes(sample("-g -O2"));
  ASSERT_TRUE(RecordingNames(s.recording, {}).keep());
  must("strip " + s.path);
  expect_truth(s, kAll);
}

TEST_F(Kept, NoStacksNoFile) {
  const Sample s = sample("-g -O2");
  ASSERT_TRUE(RecordingNames(s.recording, {}).keep());
  EXPECT_FALSE(fs::exists(kept_path()));
}

TEST_F(Kept, ADirectoryThatCannotBeWritten) {
  Sample s = with_nodes(sample("-g -O2"));
  s.recording.path = in("missing/run.gpubusy");
  const auto kept = RecordingNames(s.recording, {}).keep();
  ASSERT_FALSE(kept);
  EXPECT_THAT(kept.error().message, HasSubstr(in("missing")));
}

TEST(NameFile, KeepsOddNames) {
  recording::Recording recording;
  NameFile file(recording);
  recording::Module module{};
  module.path = "/with\ttab\nand line\\feed";
  module.build_id = "00ff";
  NativeFrame inner, outer;
  inner.function = "a\tb\\n\n";
  inner.file = "/x y/ä.cpp";
  inner.line = 2147483647;
  inner.inlined = true;
  outer.linkage = "_Z3foov.cold";
  outer.function = "foo()";
  outer.doubtful = true;
  file.put(module, 0xffffffffffffffff, {inner, outer});
  NameFile again(recording);
  ASSERT_TRUE(again.parse(file.text()));
  EXPECT_EQ(again.bad_lines(), 0u);
  EXPECT_EQ(again.text(), file.text());
  const auto* frames = again.find(module, 0xffffffffffffffff);
  ASSERT_NE(frames, nullptr);
  ASSERT_EQ(frames->size(), 2u);
  EXPECT_EQ((*frames)[0].function, inner.function);
  EXPECT_EQ((*frames)[0].file, inner.file);
  EXPECT_EQ((*frames)[0].line, inner.line);
  EXPECT_TRUE((*frames)[0].inlined);
  EXPECT_EQ((*frames)[1].function, "foo()");
  EXPECT_EQ((*frames)[1].linkage, outer.linkage);
  EXPECT_TRUE((*frames)[1].doubtful);
  EXPECT_EQ(again.find(module, 5), nullptr);
}

TEST(NameFile, TakesAnyBytes) {
  recording::Recording recording;
  recording::Module module{};
  module.path = "/lib/a.so";
  module.build_id = "0011";
  const std::string good =
      "gpubusy symbols 1\nrecording 0 0\nmodule 0011 /lib/a.so\n"
      "10\ti\t5\ta.c\t\tinner\n10\t-\t6\ta.c\touter\t\n20\t-\t0\t\t_Z1gv\t\n";
  // Cut anywhere: a name is whole or not there.
  for (std::size_t size = 0; size <= good.size(); ++size) {
    NameFile file(recording);
    file.parse(std::string_view(good).substr(0, size));
    const auto* two = file.find(module, 0x10);
    if (two != nullptr) {
      ASSERT_EQ(two->size(), 2u);
      EXPECT_EQ((*two)[1].function, "outer");
    }
    const auto* one = file.find(module, 0x20);
    EXPECT_EQ(one != nullptr, size == good.size());
    if (one != nullptr) {
      EXPECT_EQ(one->front().function, "g()");
    }
  }
  for (const char* line :
       {"", "10", "10\t-\t1\tf\tl\tn\tmore", "zz\t-\t1\tf\tl\tn", "10\tx\t1\tf\tl\tn",
        "10\t-\t-1\tf\tl\tn", "10\t-\t99999999999\tf\tl\tn", "10\t-\t0\t\t\t", "10\ti\t1\tf\t\tn",
        "11111111111111111\t-\t1\tf\tl\tn"}) {
    NameFile file(recording);
    ASSERT_TRUE(
        file.parse("gpubusy symbols 1\nmodule 0011 /lib/a.so\n" + std::string(line) + "\n"));
    EXPECT_EQ(file.find(module, 0x10), nullptr) << line;
    EXPECT_EQ(file.bad_lines(), 1u) << line;
  }
  EXPECT_FALSE(NameFile(recording).parse("gpubusy symbols 2\n" + good.substr(good.find('\n') + 1)));
  EXPECT_FALSE(NameFile(recording).parse(""));
}

// ---- files that somebody has broken -------------------------------------------------------------

TEST_F(Symbols, BrokenFilesGiveNoCrash) {
  const Sample s = sample("-O2", false);
  std::ifstream file(s.path, std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(file), {}};
  std::uint64_t random = 88172645463325252u;
  const auto next = [&] {
    random ^= random << 13;
    random ^= random >> 7;
    return random ^= random << 17;
  };
  class Text final : public recording::ByteSource {
   public:
    explicit Text(std::string text) : text_(std::move(text)) {}
    std::uint64_t size() const override { return text_.size(); }
    std::size_t read(std::uint64_t offset, void* out, std::size_t size) const override {
      if (offset >= text_.size()) return 0;
      size = std::min<std::size_t>(size, text_.size() - offset);
      std::memcpy(out, text_.data() + offset, size);
      return size;
    }

   private:
    std::string text_;
  };
  Elf64_Ehdr header;
  std::memcpy(&header, good.data(), sizeof header);
  std::size_t readable = 0, named = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string bad = good;
    for (std::uint64_t i = 0; i <= next() % 6; ++i) {
      // The headers most of the time: they lead everywhere.
      const std::uint64_t at = next() % 3 == 0 ? next() % sizeof header
                               : next() % 2 == 0
                                   ? header.e_shoff + next() % (good.size() - header.e_shoff)
                                   : next() % good.size();
      bad[at] = next() % 2 == 0 ? static_cast<char>(next()) : static_cast<char>(0xff);
    }
    if (next() % 8 == 0) bad.resize(next() % bad.size());
    const auto object = ElfObject::read(std::make_unique<Text>(bad));
    if (object == nullptr) continue;
    ++readable;
    object->debug_link();
    object->has_debug_info();
    object->contents(".gnu_debugdata", 1 << 20);
    for (const auto kind : {SymbolTable::Kind::kAll, SymbolTable::Kind::kExported}) {
      const SymbolTable table(*object, kind);
      for (const Truth& t : s.truth) named += !table.at(t.location - s.base).empty();
      for (int k = 0; k < 20; ++k) table.at(next() % (2 * good.size()));
    }
  }
  EXPECT_GT(readable, 1000u);
  EXPECT_GT(named, 1000u);
}

}  // namespace
}  // namespace gpubusy::analysis
