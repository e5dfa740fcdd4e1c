"""Many pairs of an answer in a box and its gold, one a line, as models and data sets write them."""

from __future__ import annotations

import pytest

from tokencredit.answers import check_gold, verify

RIGHT = r"""
\$5 per hour | 5
\$5 each | 5
a^2+b^2=25 | 25
100m+n=625 | 625
x=y=5 | 5
4,6 | 5\pm 1
5' | 5
x+1e3 | x+1000
90^\circ, 90^\circ | $\angle B E A_{1}=90$,$\angle A E B_{1}=90$
\frac{10^5 L_\odot}{0.007 c^2 M_\odot^6}M^6 | \frac{dM}{dt}=\frac{10^{5} L_{\odot}}{0.007 c^{2} M_{\odot}^{6}} M^{6}
LRAC=SRAC | SRAC=LRAC
2, -6-4\sqrt2 | $a=2$, $a=-6-4 \sqrt{2}$
f(x)=\pm x | $f(x)=x,f(x)=-x$
10^{0.01}, 10^{100} | $10^{100}$,$10^{1 / 100}$
(4\pm 2\sqrt2,8), (-1,-9) | $(-1,-9),(4+2 \sqrt{2}, 8),(4-2 \sqrt{2}, 8)$
125-1.25P | X_{d}=125-1.25 P
y'+ry=rx(t) | y^{\prime}+r y-r x(t)=0
4.5\times10^{33}\ \mathrm{erg\,s^{-1}} | 4.5e33
125 miles | 125\textnormal{ miles}
0.56 | 0.56 = 56\%
\frac{1}{2}, \frac{1}{3} | \{1/2, 1/3\}
x=2,\ y=3 | (2,3)
(2,3) | x=2, y=3
x = 2 \text{ and } y = 3 | x=2,y=3
3\text{ or }-3 | \pm 3
\pm\sqrt{3} | \sqrt{3},-\sqrt{3}
x=\pm 2 | \pm 2
x \in \{1, 2\} | 1,2
x \in \{1, 2\} | \{1,2\}
x \in \mathbb{R} | \mathbb{R}
[-1, \infty) | x \ge -1
-1 \le x | [-1,\infty)
x \geq -1 | x\ge-1
-2 < x \leq 5 | (-2,5]
x<1 \text{ or } x>3 | (-\infty,1)\cup(3,\infty)
(-\infty,1)\cup(3,\infty) | x<1 \text{ or } x>3
\mathbb{R} \setminus \{0\} | (-\infty,0)\cup(0,\infty)
5\%  | 0.05
12.5\% | 1/8
\$12.50 | 12.5
\$12.50 | 12.50\text{ dollars}
\text{\$12.50} | \$12.50
12 \text{ dollars and } 50 \text{ cents} | 12 \text{ dollars and } 50 \text{ cents}
1\frac{3}{4}\text{ cups} | 1.75
1 \frac34 | 7/4
10\text{ a.m.} | 10\text{ a.m.}
0.1\overline{6} | \frac16
-\frac{\pi}{6} | \frac{-\pi}{6}
\frac{\pi}{6}\text{ radians} | \frac{\pi}{6}
30^\circ | 30\text{ degrees}
\angle A = 30^\circ | 30^\circ
\sin\theta = \frac{3}{5} | 3/5
P(A)=\frac{1}{3} | 1/3
AB = 5 | 5
AB = 5\text{ cm} | 5
|AB|=5 | 5
m\angle ABC=60 | 60
\text{Area} = 12 | 12
\text{Area} = 12 \text{ cm}^2 | 12
\text{Answer: } 12 | 12
n=5 | 5
a_5 = 17 | 17
a_{10} = 17 | 17
S_{\triangle ABC} = 6 | 6
f(3)=7 | 7
f^{-1}(3)=7 | 7
f'(x)=2x | 2x
\frac{dy}{dx}=2x | 2x
y' = 2x | 2x
x^2+C | x^2 + C
\ln|x|+C | \ln |x| + C
\frac{x^3}{3}+C | x^3/3+C
\begin{pmatrix} 1 \\ 2 \end{pmatrix} | \begin{bmatrix} 1 \\ 2 \end{bmatrix}
\begin{pmatrix} \frac{1}{2} & 0 \\ 0 & 1 \end{pmatrix} | \begin{pmatrix} 1/2 & 0 \\ 0 & 1 \end{pmatrix}
\left(\begin{array}{cc} 1 & 2 \\ 3 & 4 \end{array}\right) | \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}
\left[\begin{array}{c} 1 \\ 2 \end{array}\right] | \begin{pmatrix} 1 \\ 2 \end{pmatrix}
2\mathbf{i}+3\mathbf{j} | 2\mathbf{i}+3\mathbf{j}
2\vec{i}+3\vec{j} | 3\mathbf{j}+2\mathbf{i}
(x-2)^2+(y+3)^2=25 | (x-2)^2+(y+3)^2=25
x^2+y^2-4x+6y-12=0 | (x-2)^2+(y+3)^2=25
y-2x=1 | y=2x+1
\frac{x^2}{9}+\frac{y^2}{4}=1 | 4x^2+9y^2=36
y=\frac{1}{x} | xy=1
3^{100} | 3^{100}
2^{100}\cdot 3 | 3\cdot 2^{100}
\binom{10}{3} | 120
10! | 3628800
\sqrt{50} | 5\sqrt2
\frac{3\sqrt{3}}{2} | \frac{3}{2}\sqrt{3}
\sqrt{3}/2 | \frac{\sqrt 3}{2}
sqrt(3)/2 | \frac{\sqrt 3}{2}
3sqrt(2) | 3\sqrt{2}
e^{2} | e^2
\exp(2) | e^2
\log_{10}(2) | \log 2
\log 100 | 2
\lg 100 | 2
\cos\frac{\pi}{3} | 1/2
\arctan 1 | \frac{\pi}{4}
\tan^{-1}(1) | \frac{\pi}{4}
i^2 | -1
(1+i)^2 | 2i
\frac{1+i}{2} | \frac12+\frac{i}{2}
e^{i\pi/3} | \cos\frac{\pi}{3}+i\sin\frac{\pi}{3}
\sqrt{-1} | i
\text{(A)} | A
\textbf{A} | A
\mathrm{A} | A
\mathbf{(A)} | A
A) | A
A. | A
\text{Option A} | A
\text{A and B} | A, B
A, C | C, A
AC | AC
\text{True} | true
\text{even} | even
\text{neither} | \text{Neither}
\text{No solution} | no solution
\text{no real solutions} | \text{No real solutions}
\text{blue and red} | \text{blue and red}
2:3 | 2:3
2 : 3 | \frac{2}{3}
1:2:3 | 1:2:3
4 \times 10^{-5} | 0.00004
6.02\times10^{23} | 6.02e23
1.0 \times 10^{3} | 1000
10^3 | 1000
5 \times 10^2 \text{ m} | 500
101_2 | 101_2
101_{\text{two}} | 101_{\text{two}}
-37_{8} | -37_8
37 | 37_8
kx-a | \frac{dx}{dt}=kx-a
\frac{d}{dx}x^2 | 2x
2^{1000}+\sqrt2 | \sqrt2+2\cdot 2^{999}
\overline{3}+1 | \overline{3}+1
0.\dot{3} | 1/3
\{(1,2),(3,4)\} | (3,4),(1,2)
\{x \mid x>3\} | \{ x\mid x > 3 \}
a^2b | ba^2
\frac{a}{b} | a/b
2ab | 2 b a
n(n+1)/2 | \frac{n^2+n}{2}
2^{n+1}-2 | 2(2^n-1)
(n+1)! | (n+1)!
n!(n+1) | (n+1)!
\lfloor n/2 \rfloor | \left\lfloor\frac{n}{2}\right\rfloor
\lceil 2.5 \rceil | 3
\lfloor\sqrt{n-1}\rfloor | \left\lfloor \sqrt{n-1} \right\rfloor
\lfloor\frac{n+2}{2}\rfloor | \lfloor\frac{n}{2}\rfloor+1
\lceil\frac{n}{2}\rceil | -\lfloor\frac{-n}{2}\rfloor
\frac{n!}{k!(n-k)!} | \binom{n}{k}
\max(a,b) | \max(a,b)
\gcd(a,b) | \gcd(b,a)
5\,\text{cm} | 5\text{ cm}
5~\text{cm} | 5 cm
5\ \mathrm{cm} | 5
5\mathrm{cm} | 5 cm
10\text{ km}/\text{h} | 10 km/h
10\text{ kilometers per hour} | 10\text{ km/h}
10\text{ m/s}^2 | 10
10 \frac{\text{m}}{\text{s}^2} | 10
10\,\mathrm{m\,s^{-2}} | 10 \text{ m/s}^2
25\pi\text{ square units} | 25\pi
20\text{ minutes} | 20 min
3\text{ days} | 3 days
7\text{ ways} | 7
7 different ways | 7
\text{7 people} | 7
7\text{ people} | 7\text{ people}
16\text{ oz} | 16 ounces
70\text{ mi/hr} | 70\text{ mph}
\text{Saturday} | Saturday
\text{ Saturday } | \text{Saturday}
(5, -3) | (5,-3)
\left( 5 , -3 \right) | (5,-3)
(-\infty, \infty) | \mathbb{R}
(0, 1) \cup (1, 2) | (0,1)\cup(1,2)
(1,2)\cup(0,1) | (0,1)\cup(1,2)
\left\{ \frac{1}{2} \right\} | \frac{1}{2}
\$5.00 | 5
5,000,000 | 5 million
−12 | -12
-(12) | -12
(12) | 12
{12} | 12
"12" | 12
\underline{12} | 12
\color{red}{12} | 12
\mathbf{12} | 12
\displaystyle 12 | 12
12\quad | 12
12\, | 12
\dfrac{12}{1} | 12
12.000 | 12
+12 | 12
12;13 | 12, 13
12 \text{ and } 13 | 12, 13
12\ \text{or}\ 13 | 12, 13
"""
WRONG = r"""
\$5k | 5
5 \text{ or so} | 5
5k | 5
5 \text{ dozen} | 5
5 \text{ hundred} | 5
2x+3=7 | 7
x=2y | 2
5\pm 0.1 | 5
5^{\circ}30' | 5.5
5! | 5
5^* | 5
5) | 5
5\\ | 5
5 \text{ times} | 5
e11 | 1e11
x+0.1234567890123456789012 | x+0.1234567890123456789013
x^2+1e-30 | x^2
90 | $\angle B E A_{1}=90$,$\angle A E B_{1}=90$
I_0 e^{-t/(RC)} | I(0) e^{-\frac{t}{R C}}
SRMC=LRMC | SRAC=LRAC
-6-4\sqrt2 | $a=2$, $a=-6-4 \sqrt{2}$
f(x)=x | $f(x)=x,f(x)=-x$
(60^\circ, 45^\circ),(60^\circ,135^\circ) | $(45^{\circ}, 60^{\circ}),(135^{\circ}, 60^{\circ})$
x=2, y=3 | (3,2)
(2,3) | x=3, y=2
3 | \pm 3
x \geq -1 | x > -1
[-1,\infty) | (-1,\infty)
x<1 \text{ and } x>3 | (-\infty,1)\cup(3,\infty)
x<1 | (-\infty,1)\cup(3,\infty)
1 | x<1 \text{ or } x>3
12 \text{ dollars and } 50 \text{ cents} | 12
\$12 | 12.50
1 \frac34 | 3/4
0.16 | \frac16
0.1\overline{6} | 0.16
0.\overline{3} | 0.3
\sin\theta = \frac{3}{5} | 4/5
x^2+C | x^2
x^2 | x^2 + C
\begin{pmatrix} 1 & 2 \end{pmatrix} | \begin{pmatrix} 2 & 1 \end{pmatrix}
\begin{pmatrix} 1 & 2 \end{pmatrix} | (1,2,3)
(x-2)^2+(y+3)^2=24 | (x-2)^2+(y+3)^2=25
1 | \frac{x^2}{9}+\frac{y^2}{4}=1
0 | x^2+y^2=0
x^2+y^2 | x^2+y^2=0
25 | (x-2)^2+(y+3)^2=25
y | y=2x+1
3^{101} | 3^{100}
\log 100 | \ln 100
A B | A
A | A, B
AB | A
\text{even} | odd
\text{no solution} | 0
\text{infinitely many} | \infty
2:3 | 3:2
1:2:3 | 1:2:4
1:2 | 1:2:3
4 \times 10^{5} | 4 \times 10^{-5}
5 \times 10^2 \text{ m} | 5
101_2 | 101
101_2 | 5
-37_9 | -37_8
-37_87 | -37_8
2^{2008}-2x | 2^{2008}-2
2^{1000}+\sqrt2 | 2^{1000}+\sqrt3
2\cdot\frac{dx}{dt}=kx-a | \frac{dx}{dt}=kx-a
\frac{dx}{dt}=0 | \frac{dy}{dt}=0
a^2b | ab^2
a/b | b/a
2^{n+1} | 2^n + 1
n! | (n+1)!
\lfloor n/2 \rfloor | n/2
\lfloor\sqrt{q-1}\rfloor | \lfloor\sqrt{n-1}\rfloor
\lfloor n/9 \rfloor | \lfloor n/8 \rfloor
\lfloor\sqrt{n}\rfloor | \lfloor\sqrt{n-1}\rfloor
\lceil n/2 \rceil | \lfloor n/2 \rfloor
\max(n,5) | 5
10\text{ m/s} | 10\text{ m/s}^2
10\text{ m/s} | 10\text{ km/s}
7\text{ people} | 7\text{ dogs}
3\text{ days} | 3\text{ weeks}
\text{Saturday} | Sunday
(5,-3) | (-3,5)
(5,-3,1) | (5,-3)
\{1\} | \{1, 1, 2\}
12 13 | 12
12/13 | 12, 13
12.13 | 12, 13
12 - 13 | 12
12 to 13 | 12
12-13 | 12
\text{12 not 13} | 12
-12 | |12|
12 \text{ or } 13 | 12
12, 13, 14 | 12, 13
12\ldots | 12
12, \ldots | 12
12+ | 12
>12 | 12
\ge 12 | 12
\approx 12 | 12.3
12 \approx 13 | 13
12? | 12
12\text{ mod }5 | 2
\frac{12}{0} | \infty
\frac{1}{0} | \frac{2}{0}
0/0 | 0
\infty | -\infty
\infty | 1/0
\sqrt{2} | 1.414
1.414 | \sqrt 2
\frac{1}{3} | 0.33
33.3\% | 1/3
0 | 10^{-100}
1 | 0.999
1 | 1 + 10^{-80}
x | y
x^2 | X^2
a_1 | a_2
a_1 | a
a_{12} | a_{1}2
f(x) | g(x)
f(2) | f(3)
\alpha | \beta
\theta | 0
\sin x | \cos x
\sin 2x | 2 \sin x
\int x dx | \int y dy
e^x | e^{x+1}
\pi | 3.14
3.14 | \pi
2\pi | \pi
i | -i
|x| | x
\sqrt{x^2+1} | x+1
\frac{x}{x} | 1 + 0x^2 + y - y + 1
T | TRUE
1 | \text{True}
\text{yes} | 1
{} | 0
\{\} | \{0\}
\{\emptyset\} | \emptyset
() | 0
(1), (2) | 2
[3] | 4
1,2 | 2,1,2
"""


def pairs(table: str) -> list[tuple[str, str]]:
    return [(answer, gold) for answer, gold in (line.split(" | ") for line in table.strip().splitlines())]


@pytest.mark.parametrize(("answer", "gold"), pairs(RIGHT))
def test_right(answer: str, gold: str) -> None:
    assert check_gold(gold) is None
    assert verify(f"Hence \\boxed{{{answer}}}.", gold).verdict == "right"


@pytest.mark.parametrize(("answer", "gold"), pairs(WRONG))
def test_not_right(answer: str, gold: str) -> None:
    assert verify(f"Hence \\boxed{{{answer}}}.", gold).verdict != "right"
