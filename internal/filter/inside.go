package filter

import (
	"strings"

	"github.com/holdfast-lb/holdfast/internal/nft"
)

// nameSize is the size of a link's name in the kernel, with at least one octet of zero at its end (IFNAMSIZ).
const nameSize = 16

// insideLinks returns the elements of insideSet: the names of links, and the empty one. Names and beginnings of names are
// intervals of one set, so that one lookup judges a link.
func insideLinks(names []string) nft.Elements {
	var intervals nft.Elements
	for _, name := range append([]string{""}, names...) {
		beginning, isPrefix := strings.CutSuffix(name, "*")
		if len(beginning) >= nameSize || isPrefix && beginning == "" {
			continue // no link has this name; every link has that one
		}
		after := []byte(beginning)
		if !isPrefix {
			after = padName(beginning)
		}
		after[len(after)-1]++
		intervals.Put(insideSet, string(padName(beginning)), string(padName(string(after))))
	}
	return merged(intervals)
}

func padName(name string) []byte { return append([]byte(name), make([]byte, nameSize)...)[:nameSize] }
