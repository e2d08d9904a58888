/* What the compiler compiles: some small algorithms, so that each part of it has something to do. Needs no header. */

typedef unsigned long size_t;

struct node {
    struct node *left, *right;
    long key;
    unsigned level;
};

static struct node *skew(struct node *node)
{
    if (node && node->left && node->left->level == node->level) {
        struct node *left = node->left;
        node->left = left->right;
        left->right = node;
        return left;
    }
    return node;
}

static struct node *split(struct node *node)
{
    if (node && node->right && node->right->right && node->right->right->level == node->level) {
        struct node *right = node->right;
        node->right = right->left;
        right->left = node;
        right->level++;
        return right;
    }
    return node;
}

struct node *insert(struct node *root, struct node *fresh)
{
    if (!root) {
        fresh->left = fresh->right = 0;
        fresh->level = 1;
        return fresh;
    }
    if (fresh->key < root->key)
        root->left = insert(root->left, fresh);
    else
        root->right = insert(root->right, fresh);
    return split(skew(root));
}

static void swap(double *a, double *b)
{
    double t = *a;
    *a = *b;
    *b = t;
}

void sort(double *values, size_t count)
{
    size_t i, last = 0;
    if (count < 2)
        return;
    swap(&values[0], &values[count / 2]);
    for (i = 1; i < count; i++)
        if (values[i] < values[0])
            swap(&values[++last], &values[i]);
    swap(&values[0], &values[last]);
    sort(values, last);
    sort(values + last + 1, count - last - 1);
}

void multiply(size_t n, const double *restrict a, const double *restrict b, double *restrict c)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            double sum = 0;
            for (size_t k = 0; k < n; k++)
                sum += a[i * n + k] * b[k * n + j];
            c[i * n + j] = sum;
        }
}

unsigned crc(const unsigned char *bytes, size_t count)
{
    unsigned crc = ~0u;
    while (count--) {
        crc ^= *bytes++;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (0xedb88320u & -(crc & 1));
    }
    return ~crc;
}

enum token { END, NUMBER, PLUS, MINUS, TIMES, DIVIDE, OPEN, CLOSE, WRONG };

static enum token next(const char **text, long *value)
{
    while (**text == ' ' || **text == '\t')
        ++*text;
    switch (**text) {
    case 0:
        return END;
    case '0' ... '9':
        for (*value = 0; **text >= '0' && **text <= '9'; ++*text)
            *value = *value * 10 + (**text - '0');
        return NUMBER;
    case '+': ++*text; return PLUS;
    case '-': ++*text; return MINUS;
    case '*': ++*text; return TIMES;
    case '/': ++*text; return DIVIDE;
    case '(': ++*text; return OPEN;
    case ')': ++*text; return CLOSE;
    default: return WRONG;
    }
}

static const int strength[] = {[PLUS] = 1, [MINUS] = 1, [TIMES] = 2, [DIVIDE] = 2};

/* Precedence climbing. Stops at the first token that it can't use. */
long evaluate(const char **text, int least)
{
    long left = 0, value;
    enum token token = next(text, &value);
    if (token == OPEN) {
        left = evaluate(text, 1);
        next(text, &value);
    } else if (token == MINUS) {
        left = -evaluate(text, 3);
    } else if (token == NUMBER) {
        left = value;
    }
    for (;;) {
        const char *before = *text;
        token = next(text, &value);
        if (token < PLUS || token > DIVIDE || strength[token] < least) {
            *text = before;
            return left;
        }
        long right = evaluate(text, strength[token] + 1);
        switch (token) {
        case PLUS: left += right; break;
        case MINUS: left -= right; break;
        case TIMES: left *= right; break;
        default: left = right ? left / right : 0; break;
        }
    }
}
