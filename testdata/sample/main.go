// Command sample is the program that takt's demo has built by its fleet: it
// counts primes and says which order it was built for.
package main

import (
	_ "embed"
	"fmt"
	"strings"
)

// order is replaced for each submission, so that a mixed-up artifact shows.
//
//go:embed order.txt
var order string

func main() {
	const limit = 1_000_000
	fmt.Printf("%s: %d primes below %d\n", strings.TrimSpace(order), Count(limit), limit)
}

// Count returns how many primes lie below limit (the sieve of Eratosthenes).
func Count(limit int) int {
	composite := make([]bool, max(limit, 2))
	n := 0
	for i := 2; i < limit; i++ {
		if composite[i] {
			continue
		}
		n++
		for j := i * i; j < limit; j += i {
			composite[j] = true
		}
	}
	return n
}
