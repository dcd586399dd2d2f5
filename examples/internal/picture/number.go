// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"net/netip"
	"strconv"
)

// A number is an address, or a number of addresses, of 128 bits.
type number struct{ hi, lo uint64 }

func numberOf(ip netip.Addr) number {
	b := ip.As16() // IPv4 as ::ffff:a.b.c.d, with the same distances
	return number{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

// addr is the inverse of numberOf, in the address family of like.
func (n number) addr(like netip.Addr) netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], n.hi)
	binary.BigEndian.PutUint64(b[8:], n.lo)
	ip := netip.AddrFrom16(b)
	if like.Is4() {
		return ip.Unmap()
	}
	return ip
}

func (n number) plus(m number) number {
	lo, carry := bits.Add64(n.lo, m.lo, 0)
	hi, _ := bits.Add64(n.hi, m.hi, carry)
	return number{hi, lo}
}

func (n number) minus(m number) number {
	lo, borrow := bits.Sub64(n.lo, m.lo, 0)
	hi, _ := bits.Sub64(n.hi, m.hi, borrow)
	return number{hi, lo}
}

// over returns n / 2^shift.
func (n number) over(shift uint) number {
	if shift >= 64 {
		return number{0, n.hi >> (shift - 64)}
	}
	return number{n.hi >> shift, n.lo>>shift | n.hi<<(64-shift)}
}

// times returns n * 2^shift.
func (n number) times(shift uint) number {
	if shift >= 64 {
		return number{n.lo << (shift - 64), 0}
	}
	return number{n.hi<<shift | n.lo>>(64-shift), n.lo << shift}
}

func (n number) less(m number) bool { return n.hi < m.hi || n.hi == m.hi && n.lo < m.lo }

func (n number) float() float64 { return float64(n.hi)*(1<<63)*2 + float64(n.lo) }

// String formats n for people: "65,534", or "about 2^64" for large numbers.
func (n number) String() string {
	if n.hi > 0 || n.lo >= 1<<40 {
		return fmt.Sprintf("about 2^%d", int(math.Round(math.Log2(n.float()))))
	}
	digits := strconv.FormatUint(n.lo, 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
