package edge

import "strconv"

// Sequence parses a number that is not negative; "" is 0. Error: InvalidArgument.
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
