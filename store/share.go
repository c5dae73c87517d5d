package store

// Share says who uses a limited resource. Limits are shared between credentials first, and
// within a credential between workers, sessions and addresses.
type Share struct {
	// Credential is the name of a key, or a text that can't be one; "" if none was accepted.
	Credential string
	// Part is a worker, a session or an address.
	Part string
	// Trusted is true for an address, without a credential, that has recently shown one.
	Trusted bool
}
