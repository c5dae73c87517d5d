package database

// identity is what is known about the process that a lock file names.
type identity int

const (
	// gone: no such process, or one that has ended and waits to be collected.
	gone identity = iota
	// server: a PostgreSQL process that works in this cluster.
	server
	// stranger: the number was given to another program since.
	stranger
	// unclear: alive, but this system does not say where it works.
	unclear
)

func (i identity) String() string {
	return [...]string{"gone", "server", "stranger", "unclear"}[i]
}
