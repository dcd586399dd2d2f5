// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"encoding/xml"
	"errors"
	"io"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
)

func example() []Picture {
	return []Picture{
		Draw(Input{
			Title: "podnet", Ranges: []Range{{First: ip("10.0.0.1"), Last: ip("10.0.0.46"), Gateway: ip("10.0.0.1")}},
			Reservations: all(held(InUse, "10.0.0.2", "10.0.0.34"), held(Leaked, "10.0.0.3"), held(Young, "10.0.0.35"), held(Conflict, "10.0.0.46"), held(Leaked, "10.0.7.1")),
			Last:         []netip.Addr{ip("10.0.0.34"), ip("10.0.0.35")},
		}),
		Draw(Input{Title: "storage", Reservations: held(InUse, "fd00::2", "fd00::4")}),
		Draw(Input{Title: "empty"}),
	}
}

func TestText(t *testing.T) {
	for _, row := range []struct {
		reason string
		width  int
		want   string
	}{
		{"a pipe is laid out for 80 columns, and its lines are not broken", 0, `
! conflict, malformed or failed   x leaked   o young or starting   # in use
g gateway   . free   [ ] last_reserved_ip

podnet  10.0.0.1 to 10.0.0.46, 46 addresses
          +0              +8              +16             +24
10.0.0.0     g # x . . . . . . . . . . . . . . . . . . . . . . . . . . . .
10.0.0.32  . .[#|o]. . . . . . . . . . !
5 of 45 used (11.1 %): 2 in use, 1 young or starting, 1 leaked, 1 conflict, malformed or failed
last_reserved_ip: 10.0.0.34, 10.0.0.35
1 reservation lies outside of the range: 10.0.7.1

storage  fd00::2 to fd00::4, 3 addresses
fd00::      # . #
2 of 3 used from the lowest to the highest reservation (66.7 %): 2 in use

empty
Nothing is reserved, and the range is unknown.
`},
		{"a narrow screen has shorter rows", 40, `
! conflict, malformed or failed
x leaked   o young or starting
# in use   g gateway   . free
[ ] last_reserved_ip

podnet  10.0.0.1 to 10.0.0.46, 46
addresses
10.0.0.0     g # x . . . .
10.0.0.8   . . . . . . . .
10.0.0.16  . . . . . . . .
10.0.0.24  . . . . . . . .
10.0.0.32  . .[#|o]. . . .
10.0.0.40  . . . . . . !
5 of 45 used (11.1 %): 2 in use, 1 young
or starting, 1 leaked, 1 conflict,
malformed or failed
last_reserved_ip: 10.0.0.34, 10.0.0.35
1 reservation lies outside of the range:
10.0.7.1

storage  fd00::2 to fd00::4, 3 addresses
fd00::      # . #
2 of 3 used from the lowest to the
highest reservation (66.7 %): 2 in use

empty
Nothing is reserved, and the range is
unknown.
`},
	} {
		t.Run(row.reason, func(t *testing.T) {
			plain := Text(term.Screen{Width: row.width}, example())
			if diff := cmp.Diff(strings.TrimPrefix(row.want, "\n"), plain); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			coloured := Text(term.Screen{Width: row.width, Colour: true}, example())
			if diff := cmp.Diff(plain, regexp.MustCompile("\x1b\\[[0-9;]+m").ReplaceAllString(coloured, "")); diff != "" {
				t.Errorf("coloured, without the colours (-plain +coloured):\n%s", diff)
			}
			if want := "\x1b[7;35mx\x1b[0m"; !strings.Contains(coloured, want) {
				t.Errorf("%q is not in the coloured picture", want)
			}
		})
	}
}

// All states differ from each other, with colours and without.
func TestStatesDiffer(t *testing.T) {
	seen := make(map[string]State)
	for s := Free; s < states; s++ {
		for _, sign := range []string{"glyph " + styles[s].glyph, "fill " + styles[s].fill, "class " + styles[s].class} {
			if other, ok := seen[sign]; ok {
				t.Errorf("%s and %s have the same %s", other.Label(), s.Label(), sign)
			}
			seen[sign] = s
		}
	}
}

func TestSVG(t *testing.T) {
	pictures := append(example(), Draw(Input{Title: `<script>alert("&")</script>`, Ranges: []Range{{First: ip("10.0.0.0"), Last: ip("10.255.255.255")}}, Reservations: held(Leaked, "10.0.0.1", "10.200.0.0")}))
	svg := SVG(pictures)
	elements := make(map[string]int)
	dec := xml.NewDecoder(strings.NewReader(svg))
	for {
		tok, err := dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("not well-formed: %v", err)
		}
		e, ok := tok.(xml.StartElement)
		if !ok {
			continue
		}
		elements[e.Name.Local]++
		for _, a := range e.Attr {
			if strings.HasPrefix(a.Name.Local, "on") || strings.Contains(a.Name.Local, "href") {
				t.Errorf("attribute %s=%q: the file must stand alone", a.Name.Local, a.Value)
			}
		}
	}
	for name := range elements {
		switch name {
		case "svg", "style", "rect", "text", "title":
		default:
			t.Errorf("element %s: the file must have no active or foreign parts", name)
		}
	}
	if strings.Contains(svg, "url(") || strings.Contains(svg, "@import") {
		t.Error("the style leads elsewhere")
	}
	for _, text := range []string{
		"<title>10.0.0.2: in use</title>", "<title>10.0.0.34: in use, last_reserved_ip</title>", "10.0.0.1: gateway",
		"podnet: 10.0.0.1 to 10.0.0.46, 46 addresses", "1 leaked, 16,383 free",
		"&lt;script&gt;alert(&#34;&amp;&#34;)&lt;/script&gt;",
	} {
		if !strings.Contains(svg, text) {
			t.Errorf("%q is not in it", text)
		}
	}
}

// A block shows how full it is and the worst state in it. Its text shows whether any address is
// reserved, and whether any is free.
func TestBlocks(t *testing.T) {
	run := func(state State, from, n int) (rs []Reservation) {
		for i := range n {
			rs = append(rs, Reservation{netip.AddrFrom4([4]byte{10, 0, 0, byte(from + i)}), state})
		}
		return rs
	}
	for _, row := range []struct {
		reason string
		rs     []Reservation
		parts  []string // class and height of each, from the bottom
		glyph  string   // in the SVG
		text   string   // for a terminal
	}{
		{"nothing is reserved", nil, nil, "", "."},
		{"one address", run(InUse, 0, 1), []string{"in-use 2"}, "", "1"},
		{"a half", run(InUse, 0, 32), []string{"in-use 9"}, "", "5"},
		{"a tenth and a bit", run(InUse, 0, 7), []string{"in-use 2"}, "", "2"},
		{"all but one", run(InUse, 0, 63), []string{"in-use 16"}, "", "9"},
		{"all", run(InUse, 0, 64), []string{"in-use 17"}, "", "#"},
		{"all but the gateway, which is never handed out", run(InUse, 1, 63), []string{"in-use 17"}, "", "#"},
		{"one leak among many", all(run(InUse, 0, 63), run(Leaked, 63, 1)), []string{"leaked 2", "in-use 15", "leaked 11"}, "x", "x"},
		{"a conflict among leaks", all(run(Leaked, 0, 32), run(Conflict, 32, 1), run(Young, 33, 1)), []string{"conflict 2", "leaked 9", "young 2", "conflict 11"}, "!", "!"},
		{"a conflict alone", run(Conflict, 5, 1), []string{"conflict 2", "conflict 11"}, "!", "!"},
	} {
		in := Input{Title: "n", Ranges: []Range{{First: ip("10.0.0.0"), Last: ip("10.0.255.255")}}, Reservations: row.rs}
		if strings.Contains(row.reason, "gateway") {
			in.Ranges[0].Gateway = ip("10.0.0.0")
		}
		pictures := []Picture{Draw(in)}
		_, svg, _ := strings.Cut(Inline(pictures), "<title>10.0.0.0 to 10.0.0.63: ")
		svg, _, _ = strings.Cut(svg, "<title>")
		var parts []string
		for _, m := range regexp.MustCompile(`height="(\d+)" rx="2" class="v ([a-z-]+)"`).FindAllStringSubmatch(svg, -1) {
			parts = append(parts, m[2]+" "+m[1])
		}
		if diff := cmp.Diff(row.parts, parts); diff != "" {
			t.Errorf("%s: parts (-want +got):\n%s", row.reason, diff)
		}
		glyph := ""
		if m := regexp.MustCompile(`<text class="g [a-z]+" x="\d+" y="\d+">(.)</text>`).FindStringSubmatch(svg); m != nil {
			glyph = m[1]
		}
		if glyph != row.glyph {
			t.Errorf("%s: glyph %q, want %q", row.reason, glyph, row.glyph)
		}
		_, text, _ := strings.Cut(Text(term.Screen{}, pictures), "\n10.0.0.0 ")
		if text, _, _ = strings.Cut(strings.TrimSpace(text), " "); text != row.text {
			t.Errorf("%s: text %q, want %q", row.reason, text, row.text)
		}
	}
	if text := Text(term.Screen{}, []Picture{Draw(Input{Reservations: run(InUse, 0, 9)})}); strings.Contains(text, "1-9") {
		t.Errorf("single addresses are explained as blocks are:\n%s", text)
	}
}
