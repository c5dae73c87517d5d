package store

// Once makes a submission happen at most once a day.
type Once struct {
	// Key is the SHA-256 of the submitter's name for it, Content of all that is
	// submitted.
	Key, Content [32]byte
	// Seal makes what is kept of the reply, and given out again with Repeated. It
	// is called within the transaction.
	Seal func(Build) ([]byte, error)
}

// Repeated is the error of a submission whose key has been used already. Nothing
// was changed.
type Repeated struct {
	// Content is that of the first submission; it may differ.
	Content [32]byte
	// Reply is what Once.Seal made then.
	Reply []byte
}

func (r *Repeated) Error() string { return "the idempotency key has been used" }
