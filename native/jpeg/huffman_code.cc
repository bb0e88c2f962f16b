#include "jpeg/huffman_code.h"

#include <algorithm>

namespace penstock::jpeg {
namespace {

constexpr int kLookupBits = LookupEntry::kLookupBits;
constexpr LookupEntry kNone(0, 0, LookupEntry::kNoEntry), kNoDifference(0, 0, LookupEntry::kNoDifference);

// F.1.2.2.1: an AC symbol is RRRRSSSS. As libjpeg does, each one of size 0 but ZRL ends the block.
constexpr LookupEntry ac_entry(int length, int symbol) {
  const int run = symbol >> 4, size = symbol & 15;
  if (size == 0 && run != 15) return {length, 0, LookupEntry::kEndOfBlock};
  return {length, size, run + 1};
}

// Writes the entries of windows in order.
class Writer {
 public:
  explicit Writer(LookupTable& table) : table_(table) {}

  void repeat(const LookupEntry& entry, std::size_t count) {
    std::fill_n(table_.begin() + static_cast<std::ptrdiff_t>(at_), count, entry);
    at_ += count;
  }
  void rest(const LookupEntry& entry) { repeat(entry, table_.size() - at_); }

  // The entries of a symbol with a code of `length` bits and `size` additional bits: joined with AC symbols where a
  // code of these follows whole, `alone` elsewhere.
  void join(int length, int size, int steps, const LookupEntry& alone, const LookupTable& single, const HuffmanCode& code) {
    const int used = length + size, left = kLookupBits - used;
    if (left <= 0) return repeat(alone, std::size_t{1} << (kLookupBits - length));
    const std::size_t covered = code.covered(left), windows = std::size_t{1} << left;
    for (int bits = 0; bits < 1 << size; ++bits) {
      const int value = extend(bits, size);
      for (std::size_t window = 0; window < covered; ++window)
        table_[at_ + window] = single[window << used].after(used, steps, value);
      at_ += covered;
      repeat(alone, windows - covered);
    }
  }

 private:
  LookupTable& table_;
  std::size_t at_ = 0;
};

// Calls visit(length, symbol) for each code that a look-up can hold, in order.
template <class Visit>
void each_short_code(const HuffmanTable& table, Visit visit) {
  std::size_t next = 0;
  for (int length = 1; length <= kLookupBits; ++length)
    for (int i = 0; i < table.counts[length]; ++i) visit(length, table.symbols[next++]);
}

}  // namespace

bool HuffmanCode::build(const HuffmanTable& table) noexcept {
  std::uint32_t code = 0;
  std::int32_t symbols = 0;
  for (int length = 1; length <= 16; ++length) {
    code <<= 1;
    offset_[length] = symbols - static_cast<std::int32_t>(code);
    const int count = table.counts[length];
    code += static_cast<std::uint32_t>(count);
    symbols += count;
    if (symbols > 256 || (count > 0 && code >= std::uint32_t{1} << length)) return false;
    limit_[length] = code << (16 - length);
  }
  symbols_ = table.symbols;
  return true;
}

HuffmanCode::Symbol HuffmanCode::find(std::uint32_t window) const noexcept {
  int length = window < limit_[kLookupBits] ? 1 : kLookupBits + 1;
  while (length <= 16 && window >= limit_[length]) ++length;
  if (length > 16) return {};
  const std::int32_t code = static_cast<std::int32_t>(window >> (16 - length));
  return {symbols_[static_cast<std::size_t>(code + offset_[length])], length};
}

bool BlockTables::build(const HuffmanTable& dc, const HuffmanTable& ac_table) noexcept {
  if (!dc_code.build(dc) || !ac_code.build(ac_table)) return false;
  bool sizes = true;  // libjpeg takes up to 15, one more than T.81 has for 12 bits
  std::size_t symbols = 0;
  for (int length = 1; length <= 16; ++length) symbols += dc.counts[length];
  for (std::size_t i = 0; i < symbols; ++i) sizes = sizes && dc.symbols[i] <= 15;
  if (!sizes) return false;

  LookupTable single;
  Writer alone(single);
  each_short_code(ac_table, [&](int length, int symbol) {
    alone.repeat(ac_entry(length, symbol), std::size_t{1} << (kLookupBits - length));
  });
  alone.rest(kNone);

  Writer ac_writer(ac);
  each_short_code(ac_table, [&](int length, int symbol) {
    const LookupEntry entry = ac_entry(length, symbol);
    if (entry.steps() == LookupEntry::kEndOfBlock)
      ac_writer.repeat(entry, std::size_t{1} << (kLookupBits - length));
    else
      ac_writer.join(length, symbol & 15, (symbol >> 4) + 1, entry, single, ac_code);
  });
  ac_writer.rest(kNone);

  Writer first_writer(first);
  each_short_code(dc, [&](int length, int size) {
    first_writer.join(length, size, 0, LookupEntry(length, size, 0), single, ac_code);
  });
  first_writer.rest(kNoDifference);
  return true;
}

}  // namespace penstock::jpeg
