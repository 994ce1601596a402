// Four words to shared memory, by an address of 32 bits.
__device__ __forceinline__ void store_shared(unsigned to, const unsigned (&words)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
               ::"r"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]) : "memory");
}
