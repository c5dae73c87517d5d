package edge

import "strconv"

// Sequence reads a number that starts at 0; "" is 0.
func Sequence(name, v string) (int64, error) {
	if v == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 0 {
		return 0, Invalid(name + " must be a whole number")
	}
	return n, nil
}
